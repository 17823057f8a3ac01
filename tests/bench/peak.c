/*
 * peak - measure the peak multiply-add rate of this machine on all threads.  f32 is measured in registers, with the
 * widest vectors.  bf16 is measured with the dot-product instruction in registers, and with oneDNN's product of large
 * matrices, which can use instructions that this program does not; the faster rate is reported.  Print one JSON line in
 * GFLOP/s; each rate is the median of five runs.  bf16 is null if neither method is available.
 */
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "cpu/cpu.h"
#include "cpu/internal.h"

#ifdef __x86_64__
#    include <immintrin.h>
#endif

enum { TIMES = 5, BF16_CHAINS = 24, LARGE = 2048, PRODUCTS = 3 };
enum { ROUNDS = 1 << 24, CHAINS = 12 }; /* independent sums: at least the latency in cycles times the number of units */

/* Compute twelve chains of a = a x + y in vectors of n bytes for ROUNDS iterations; return the number of FLOPs. */
#define CHAINS_OF(n)                                                                                                   \
    typedef float vec __attribute__((vector_size(n)));                                                                 \
    const vec x = (vec){ 0 } + 0.999f, y = (vec){ 0 } + 1e-3f;                                                         \
    vec a0 = x, a1 = x * 2, a2 = x * 3, a3 = x * 4, a4 = x * 5, a5 = x * 6, a6 = x * 7, a7 = x * 8, a8 = x * 9,        \
        a9 = x * 10, a10 = x * 11, a11 = x * 12; /* distinct, or the compiler would merge them */                      \
    for (int i = 0; i < ROUNDS; i++) {                                                                                 \
        a0 = a0 * x + y, a1 = a1 * x + y, a2 = a2 * x + y, a3 = a3 * x + y;                                            \
        a4 = a4 * x + y, a5 = a5 * x + y, a6 = a6 * x + y, a7 = a7 * x + y;                                            \
        a8 = a8 * x + y, a9 = a9 * x + y, a10 = a10 * x + y, a11 = a11 * x + y;                                        \
    }                                                                                                                  \
    a0 += a1 + a2 + a3 + a4 + a5 + a6 + a7 + a8 + a9 + a10 + a11;                                                      \
    *(volatile float *)out = a0[0];                                                                                    \
    return 2.0 * CHAINS * (double)(n) / sizeof(float) * ROUNDS;

#ifdef __x86_64__
__attribute__((target("avx512f"))) static double v4(float *out)
{
    CHAINS_OF(64)
}

__attribute__((target("avx2,fma"))) static double v3(float *out)
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

#ifdef __x86_64__
/* Each instruction adds two products to each of 16 sums. */
__attribute__((target("avx512f,avx512bf16"))) static double bf16_registers(float *out)
{
    const __m512bh x = (__m512bh)_mm512_set1_epi16(0x3f00), y = (__m512bh)_mm512_set1_epi16(0x3c00);
    __m512 a[BF16_CHAINS], sum = _mm512_setzero_ps();

    for (int k = 0; k < BF16_CHAINS; k++)
        a[k] = _mm512_set1_ps((float)k);
    for (int i = 0; i < ROUNDS / 2; i++) {
#    pragma GCC unroll 24
        for (int k = 0; k < BF16_CHAINS; k++)
            a[k] = _mm512_dpbf16_ps(a[k], x, y);
    }
    for (int k = 0; k < BF16_CHAINS; k++)
        sum = _mm512_add_ps(sum, a[k]);
    *(volatile float *)out = sum[0];
    return 2.0 * BF16_CHAINS * 32 * (ROUNDS / 2);
}
#endif

/* Multiply bf16 matrices in this thread; return the number of FLOPs, or 0 if oneDNN has no bf16 product. */
static double bf16_product(float *out)
{
    const size_t n = (size_t)LARGE * LARGE;
    uint16_t *a = meg_new(n * sizeof *a);
    float *c = meg_new(n * sizeof *c);
    const struct meg_mat x = { .p = a, .dtype = MEG_DTYPE_BF16, .ld = LARGE };
    const bool has = meg_cpu_has_bf16_gemm();

    for (size_t i = 0; i < n; i++)
        a[i] = (uint16_t)(0x3c00 + i % 256);
    for (int i = 0; i < PRODUCTS && has; i++)
        meg_cpu_gemm(&(struct gemm){
            .ta = 'N', .tb = 'T', .m = LARGE, .n = LARGE, .k = LARGE, .a = x, .b = x, .c = c, .ldc = LARGE });
    *(volatile float *)out = c[0];
    free(a);
    free(c);
    return has ? 2.0 * PRODUCTS * LARGE * (double)n : 0.0;
}

/* Return the median over TIMES runs of the rate of all threads together, in GFLOP/s. */
static double median_rate(double (*run)(float *))
{
    double rate[TIMES];

    for (int i = 0; i < TIMES; i++) {
        const double start = meg_now_s();
        double flops = 0.0;
#pragma omp parallel reduction(+ : flops)
        {
            float out;
            flops += run(&out);
        }
        rate[i] = flops / (meg_now_s() - start) / 1e9;
    }
    qsort(rate, TIMES, sizeof *rate, by_value);
    return rate[TIMES / 2];
}

int main(void)
{
    double (*run)(float *) = base, bf16 = 0.0, product;

    meg_cpu_ops(); /* binds the threads */
    meg_cpu_gemm_load();
#ifdef __x86_64__
    run = __builtin_cpu_supports("avx512f") ? v4 : __builtin_cpu_supports("fma") ? v3 : base;
    if (__builtin_cpu_supports("avx512bf16"))
        bf16 = median_rate(bf16_registers);
#endif
    product = median_rate(bf16_product);
    bf16 = product > bf16 ? product : bf16;
    printf("{\"f32\":%.1f,\"bf16\":", median_rate(run));
    if (bf16 > 0.0)
        printf("%.1f}\n", bf16);
    else
        printf("null}\n");
    return meg_close_stdout();
}
