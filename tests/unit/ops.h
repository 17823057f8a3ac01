/*
 * ops.h - helpers for the tests of the CPU's operations: runs at each instruction set of this machine, random data,
 * comparison with float64, and a digest to compare numbers of threads.
 */
#ifndef TESTS_UNIT_OPS_H
#define TESTS_UNIT_OPS_H
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "cpu/internal.h"
#include "tensor/half.h"
#include "tensor/suballoc.h"

#define EPS 5.9604645e-8 /* half an ulp of 1 in f32 */
#define LEN(a) (sizeof(a) / sizeof *(a))

typedef void ops_test(const struct meg_ops *ops);
struct ops_case {
    const char *name;
    ops_test *run;
};

struct ops_case_at {
    const struct ops_case *c;
    int level;
};

static void run_case_at(void **state)
{
    const struct ops_case_at *at = *state;
    const struct meg_ops *ops = meg_cpu_level(at->level);
    if (!ops) {
        print_message("# this machine lacks the instruction set\n");
        skip();
    }
    at->c->run(ops);
    omp_set_num_threads(2);
}

static inline int run_cases(const struct ops_case *cases, size_t n)
{
    static const char *const level[] = { "v4", "v3", "base" };
    struct CMUnitTest test[64];
    struct ops_case_at at[64];
    char name[64][96];
    size_t k = 0;
    for (size_t i = 0; i < n; i++)
        for (int l = 0; l < MEG_CPU_LEVELS; l++, k++) {
            assert_true(k < LEN(test));
            at[k] = (struct ops_case_at){ cases + i, l };
            snprintf(name[k], sizeof name[k], "%s (%s)", cases[i].name, level[l]);
            test[k] = (struct CMUnitTest){ name[k], run_case_at, NULL, NULL, at + k };
        }
    return _cmocka_run_group_tests("ops", test, k, NULL, NULL);
}

/* Return a random number, uniform in [-1, 1).  The sequence of numbers is the same in every run. */
static uint64_t rng_state = 88172645463325252u;
static inline double rnd(void)
{
    rng_state ^= rng_state << 13;
    rng_state ^= rng_state >> 7;
    rng_state ^= rng_state << 17;
    return (double)(rng_state >> 11) / 4503599627370496.0 - 1.0;
}

static inline float *rnd_new(int64_t n)
{
    float *p = malloc((size_t)n * sizeof *p);
    for (int64_t i = 0; i < n; i++)
        p[i] = (float)rnd();
    return p;
}

/* gcc 12 warns of negative n where it inlines this function. */
static __attribute__((noinline, unused)) void *zeros(int64_t n, size_t size)
{
    return calloc((size_t)n, size);
}

static inline float at(struct meg_mat m, int64_t r, int64_t c)
{
    const int64_t i = r * m.ld + c;
    const uint16_t *h = m.p;
    switch (m.dtype) {
    case MEG_DTYPE_BF16: return meg_from_bf16(h[i]);
    case MEG_DTYPE_F16: return meg_from_f16(h[i]);
    default: return ((float *)m.p)[i];
    }
}

static inline void put(struct meg_mat m, int64_t r, int64_t c, float v)
{
    const int64_t i = r * m.ld + c;
    uint16_t *h = m.p;
    switch (m.dtype) {
    case MEG_DTYPE_BF16: h[i] = meg_to_bf16(v); break;
    case MEG_DTYPE_F16: h[i] = meg_to_f16(v); break;
    default: ((float *)m.p)[i] = v;
    }
}

/* Return a matrix of random values of type t.  The row padding, pad elements between rows, is NaN. */
static inline struct meg_mat rnd_mat_of(enum meg_dtype t, int64_t rows, int64_t cols, int64_t pad)
{
    struct meg_mat m = { malloc((size_t)(rows * (cols + pad)) * meg_dtype_size(t)), t, rows, cols, cols + pad };
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < m.ld; c++)
            put(m, r, c, c < cols ? (float)rnd() : NAN);
    return m;
}

/* Update the FNV-1a hash h with nbytes. */
static inline void digest(uint64_t *h, const void *p, size_t nbytes)
{
    for (size_t i = 0; i < nbytes; i++)
        *h = (*h ^ ((const unsigned char *)p)[i]) * 1099511628211u;
}

/* Fail unless |got - want| <= tol; a NaN fails. */
static inline void near(double got, double want, double tol, const char *what, int64_t r, int64_t c)
{
    if (!(fabs(got - want) <= tol))
        fail_msg("%s[%lld,%lld] is %.9g, expected %.9g: the error is %.3g, allowed is %.3g", what, (long long)r,
                 (long long)c, got, want, fabs(got - want), tol);
}

/* Compare a value rounded to type t: like near, but allow half an ulp of t more. */
static inline void near_of(enum meg_dtype t, double got, double want, double tol, const char *what, int64_t r,
                           int64_t c)
{
    if (t == MEG_DTYPE_BF16)
        tol += 0x1p-8 * (fabs(want) + tol);
    if (t == MEG_DTYPE_F16)
        tol += 0x1p-11 * (fabs(want) + tol) + 0x1p-25;
    near(got, want, tol, what, r, c);
}

static inline float *copy_new(const float *x, int64_t n)
{
    return memcpy(malloc((size_t)n * sizeof *x), x, (size_t)n * sizeof *x);
}

#endif
