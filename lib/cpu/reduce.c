/* isa: baseline v3 v4 */
/*
 * reduce.c - column sums, sums of squares, weighted sums and counts of zeros.  The order of summation depends only on
 * the length and the instruction set, not on the number of threads.
 */
#include "cpu/row.h"

enum { COLS = 128, PARTS = 1024 };

void MEG_FN(column_sums)(struct meg_mat out, struct meg_mat x, bool accumulate)
{
#pragma omp parallel for schedule(dynamic)
    for (int64_t c0 = 0; c0 < x.cols; c0 += COLS) {
        const int64_t n = meg_min64(COLS, x.cols - c0);
        float xb[COLS], outb[COLS], *o = row_sum(out, 0, c0, n, outb, accumulate);
        for (int64_t r0 = 0; r0 < x.rows; r0 += 64) {
            float sum[COLS] = { 0 };
            for (int64_t r = r0; r < meg_min64(r0 + 64, x.rows); r++) {
                const float *p = row_read(x, r, c0, n, xb);
#pragma omp simd
                for (int64_t c = 0; c < n; c++)
                    sum[c] += p[c];
            }
            for (int64_t c = 0; c < n; c++)
                o[c] += sum[c];
        }
        row_store(out, 0, c0, n, o);
    }
}

/* gcc 12 does not vectorize the loops of squares and zeros_in if they are inlined after row_read. */
static __attribute__((noinline)) double squares(const float *x, int64_t n)
{
    double s = 0.0;
#pragma omp simd reduction(+ : s)
    for (int64_t k = 0; k < n; k++)
        s += (double)x[k] * x[k];
    return s;
}

static __attribute__((noinline)) int64_t zeros_in(const float *x, int64_t n)
{
    int64_t zeros = 0;
#pragma omp simd reduction(+ : zeros)
    for (int64_t k = 0; k < n; k++)
        zeros += x[k] == 0.0f;
    return zeros;
}

void MEG_FN(sumsq)(struct meg_stream *st, const struct meg_sumsq_args *a)
{
    const struct meg_mat v = row_vector(a->x, a->type, a->n);
    double part[PARTS], sum = 0.0;
    const int64_t len = meg_ceil_div(a->n, PARTS);
    (void)st;
#pragma omp parallel for schedule(static)
    for (int i = 0; i < PARTS; i++) {
        const int64_t end = meg_min64(a->n, (i + 1) * len);
        double s = 0.0;
        for (int64_t k0 = i * len; k0 < end; k0 += COL_BLOCK) {
            const int64_t m = meg_min64(COL_BLOCK, end - k0);
            float buf[COL_BLOCK];
            s += squares(row_read(v, 0, k0, m, buf), m);
        }
        part[i] = s;
    }
    for (int i = 0; i < PARTS; i++)
        sum += part[i];
    *a->out += sum;
}

void MEG_FN(sumsq_ranges)(struct meg_stream *st, const struct meg_sumsq_ranges_args *a)
{
    for (int i = 0; i < a->nranges; i++) {
        const struct meg_range r = a->range[i];
        const struct meg_sumsq_args sum = { a->out + i, meg_element(a->x, r.begin, a->type), a->type, r.end - r.begin };

        MEG_FN(sumsq)(st, &sum);
    }
}

void MEG_FN(weighted_sum)(struct meg_stream *st, const struct meg_weighted_sum_args *a)
{
    double sum = 0.0;
    (void)st;
    for (int64_t i = 0; i < a->n; i++)
        sum += a->weight ? (double)a->x[i] * (double)a->weight[i] : (double)a->x[i];
    *a->out += a->scale ? *a->scale * sum : sum;
}

void MEG_FN(count_zeros)(struct meg_stream *st, const struct meg_count_zeros_args *a)
{
    const struct meg_mat v = row_vector(a->x, a->type, a->n);
    int64_t zeros = 0;
    (void)st;
#pragma omp parallel for schedule(static) reduction(+ : zeros)
    for (int64_t k0 = 0; k0 < a->n; k0 += COL_BLOCK) {
        const int64_t m = meg_min64(COL_BLOCK, a->n - k0);
        float buf[COL_BLOCK];
        zeros += zeros_in(row_read(v, 0, k0, m, buf), m);
    }
    *a->out += zeros;
}
