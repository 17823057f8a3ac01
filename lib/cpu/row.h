/* One row of a residual addition and of a norm, for the operations that have them alone or together. */
#ifndef MEG_CPU_ROW_H
#define MEG_CPU_ROW_H
#include "cpu/dropout.h"

/* z = x + dropout(y + bias), row r of d's activations; x NULL for none. */
static inline void add_row(float *z, const float *x, const float *y, const float *bias, int64_t n,
                           const struct meg_drop *d, const struct drop *drop, int64_t r)
{
    struct drop_run run;
    for (int64_t c0 = 0; c0 < n; c0 += DROP_RUN) {
        const int64_t m = min64(DROP_RUN, n - c0);
        if (!drop->threshold) {
            for (int64_t c = c0; c < c0 + m; c++) {
                const float v = bias ? y[c] + bias[c] : y[c];
                z[c] = x ? x[c] + v : v;
            }
        } else {
            const float *f =
                drop_factors(&run, drop, d->unit0 + c0, m, drop_position(d, r), drop_sample(d, r)) -
                c0;
            for (int64_t c = c0; c < c0 + m; c++) {
                const float v = (bias ? y[c] + bias[c] : y[c]) * f[c];
                z[c] = x ? x[c] + v : v;
            }
        }
    }
}

static inline void rms_row(float *y, float *rstd, const float *x, const float *w, int64_t n,
                           float eps)
{
    float s2 = 0.0f, rs;
#pragma omp simd reduction(+ : s2)
    for (int64_t c = 0; c < n; c++)
        s2 += x[c] * x[c];
    rs = 1.0f / sqrtf(s2 / (float)n + eps);
#pragma omp simd
    for (int64_t c = 0; c < n; c++)
        y[c] = x[c] * rs * w[c];
    *rstd = rs;
}

static inline void layer_norm_row(float *y, float *mean, float *rstd, const float *x,
                                  const float *w, const float *b, int64_t n, float eps)
{
    float s = 0.0f, s2 = 0.0f, mu, rs;
#pragma omp simd reduction(+ : s)
    for (int64_t c = 0; c < n; c++)
        s += x[c];
    mu = s / (float)n;
#pragma omp simd reduction(+ : s2)
    for (int64_t c = 0; c < n; c++)
        s2 += (x[c] - mu) * (x[c] - mu);
    rs = 1.0f / sqrtf(s2 / (float)n + eps);
#pragma omp simd
    for (int64_t c = 0; c < n; c++)
        y[c] = (x[c] - mu) * rs * w[c] + b[c];
    *mean = mu;
    *rstd = rs;
}

/* Row r of norm_fwd. */
static inline void norm_row(enum meg_norm kind, float *y, float *mean, float *rstd, const float *x,
                            const float *w, const float *b, int64_t n, float eps, int64_t r)
{
    if (kind == MEG_NORM_RMS)
        rms_row(y, rstd + r, x, w, n, eps);
    else
        layer_norm_row(y, mean + r, rstd + r, x, w, b, n, eps);
}

/* The largest of x[0..n), NaNs left out; -infinity when there is none. */
static inline float row_max(const float *x, int64_t n)
{
    enum { LANES = 64 };
    float lane[LANES], m = -INFINITY;
    int64_t c = 0;
    for (int l = 0; l < LANES; l++)
        lane[l] = -INFINITY;
    for (; c + LANES <= n; c += LANES)
#pragma omp simd
        for (int l = 0; l < LANES; l++)
            lane[l] = x[c + l] > lane[l] ? x[c + l] : lane[l];
    for (int l = 0; l < LANES; l++)
        m = lane[l] > m ? lane[l] : m;
    for (; c < n; c++)
        m = x[c] > m ? x[c] : m;
    return m;
}

#endif
