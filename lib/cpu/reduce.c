/* isa: baseline v3 v4 */
/* Sums over columns and over whole buffers, each in an order that depends on the length alone. */
#include "cpu/row.h"

enum { COLS = 128, PARTS = 1024 };

void MEG_FN(add_column_sums)(float *out, struct meg_mat x)
{
#pragma omp parallel for schedule(dynamic)
    for (int64_t c0 = 0; c0 < x.cols; c0 += COLS) {
        const int64_t n = min64(COLS, x.cols - c0);
        for (int64_t r0 = 0; r0 < x.rows; r0 += 64) {
            float sum[COLS] = { 0 }, buf[COLS];
            for (int64_t r = r0; r < min64(r0 + 64, x.rows); r++) {
                const float *p = row_get(x, r, c0, n, buf);
#pragma omp simd
                for (int64_t c = 0; c < n; c++)
                    sum[c] += p[c];
            }
            for (int64_t c = 0; c < n; c++)
                out[c0 + c] += sum[c];
        }
    }
}

void MEG_FN(sumsq)(struct meg_stream *st, double *out, const float *x, int64_t n)
{
    double part[PARTS], sum = 0.0;
    const int64_t len = blocks(n, PARTS);
    (void)st;
#pragma omp parallel for schedule(static)
    for (int i = 0; i < PARTS; i++) {
        const int64_t end = min64(n, (i + 1) * len);
        double s = 0.0;
#pragma omp simd reduction(+ : s)
        for (int64_t k = i * len; k < end; k++)
            s += (double)x[k] * x[k];
        part[i] = s;
    }
    for (int i = 0; i < PARTS; i++)
        sum += part[i];
    *out = sum;
}

void MEG_FN(count_zeros)(struct meg_stream *st, int64_t *out, const float *x, int64_t n)
{
    int64_t zeros = 0;
    (void)st;
#pragma omp parallel for simd schedule(static) reduction(+ : zeros)
    for (int64_t k = 0; k < n; k++)
        zeros += x[k] == 0.0f;
    *out = zeros;
}
