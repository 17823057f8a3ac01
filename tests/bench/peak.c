/*
 * peak - the f32 multiply-adds this machine can do: registers only, all threads, the widest vectors
 * it has.  Prints GF/s, the median of five.
 */
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include "base/clock.h"
#include "base/err.h"
#include "cpu/cpu.h"

enum { ROUNDS = 1 << 24, CHAINS = 12 }; /* independent sums: latency times units, or more */

/* Twelve chains of a = a x + y in vectors of n bytes, for as long as ROUNDS takes; flops are returned. */
#define CHAINS_OF(n)                                                                               \
    typedef float vec __attribute__((vector_size(n)));                                             \
    const vec x = (vec){ 0 } + 0.999f, y = (vec){ 0 } + 1e-3f;                                     \
    vec a0 = x, a1 = x * 2, a2 = x * 3, a3 = x * 4, a4 = x * 5, a5 = x * 6, a6 = x * 7,            \
        a7 = x * 8, a8 = x * 9, a9 = x * 10, a10 = x * 11,                                         \
        a11 = x * 12; /* or they are made one */                                                   \
    for (int i = 0; i < ROUNDS; i++) {                                                             \
        a0 = a0 * x + y, a1 = a1 * x + y, a2 = a2 * x + y, a3 = a3 * x + y;                        \
        a4 = a4 * x + y, a5 = a5 * x + y, a6 = a6 * x + y, a7 = a7 * x + y;                        \
        a8 = a8 * x + y, a9 = a9 * x + y, a10 = a10 * x + y, a11 = a11 * x + y;                    \
    }                                                                                              \
    a0 += a1 + a2 + a3 + a4 + a5 + a6 + a7 + a8 + a9 + a10 + a11;                                  \
    *(volatile float *)out = a0[0];                                                                \
    return 2.0 * CHAINS * (double)(n) / sizeof(float) * ROUNDS;

#ifdef __x86_64__
__attribute__((target("avx512f"), optimize("fp-contract=fast"))) static double v4(float *out)
{
    CHAINS_OF(64)
}

__attribute__((target("avx2,fma"), optimize("fp-contract=fast"))) static double v3(float *out)
{
    CHAINS_OF(32)
}
#endif

static double base(float *out)
{
    CHAINS_OF(16)
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(void)
{
    double (*run)(float *) = base, rate[5];
#ifdef __x86_64__
    run = __builtin_cpu_supports("avx512f") ? v4 : __builtin_cpu_supports("fma") ? v3 : base;
#endif
    meg_cpu_ops(); /* binds the threads */
    for (int i = 0; i < 5; i++) {
        const double start = meg_now_s();
        double flops = 0.0;
#pragma omp parallel reduction(+ : flops)
        {
            float out;
            flops += run(&out);
        }
        rate[i] = flops / (meg_now_s() - start) / 1e9;
    }
    qsort(rate, 5, sizeof *rate, by_value);
    printf("%.1f\n", rate[2]);
    return meg_finish();
}
