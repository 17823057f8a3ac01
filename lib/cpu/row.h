/* One row: reading and writing it as f32, a residual addition and a norm of it, alone or together. */
#ifndef MEG_CPU_ROW_H
#define MEG_CPU_ROW_H
#include "cpu/dropout.h"

/*
 * Operations compute in f32, on runs of at most SEG columns: those of an f32 matrix are worked on where
 * they lie; those of bf16 and f16 are widened into a buffer, and rounded once on their way back.
 */
enum { COL_BLOCK = 1024 };

/* Columns [c0, c0 + n) of row r, where they are or widened into buf [n]; NULL for a matrix without memory. */
static inline const float *row_get(struct meg_mat m, int64_t r, int64_t c0, int64_t n, float *buf)
{
    if (m.dtype == MEG_DTYPE_F32)
        return m.p ? element(m, r, c0) : NULL;
    if (!m.p)
        return NULL;
    MEG_FN(widen)(buf, element(m, r, c0), m.dtype, n);
    return buf;
}

/* Where to compute row r from column c0 on: in place, or in buf, from which row_put takes it. */
static inline float *row_out(struct meg_mat m, int64_t r, int64_t c0, float *buf)
{
    return m.dtype == MEG_DTYPE_F32 ? element(m, r, c0) : buf;
}

/* The same with what it holds already, to be added to. */
static inline float *row_open(struct meg_mat m, int64_t r, int64_t c0, int64_t n, float *buf)
{
    row_get(m, r, c0, n, buf);
    return row_out(m, r, c0, buf);
}

static inline void row_put(struct meg_mat m, int64_t r, int64_t c0, int64_t n, const float *v)
{
    if (m.dtype != MEG_DTYPE_F32)
        MEG_FN(narrow)(element(m, r, c0), m.dtype, v, n);
}

/* Row r of z = x + dropout(y + bias); x.p NULL for none, bias one row or without memory. */
static inline void add_row(struct meg_mat z, struct meg_mat x, struct meg_mat y, struct meg_mat bias,
                           const struct meg_drop *d, const struct drop *drop, int64_t r)
{
    struct drop_buf run;
    float xb[DROP_BLOCK], yb[DROP_BLOCK], bb[DROP_BLOCK], zb[DROP_BLOCK];
    for (int64_t c0 = 0; c0 < z.cols; c0 += DROP_BLOCK) {
        const int64_t n = min64(DROP_BLOCK, z.cols - c0);
        const float *xr = row_get(x, r, c0, n, xb), *yr = row_get(y, r, c0, n, yb);
        const float *b = row_get(bias, 0, c0, n, bb);
        float *zr = row_out(z, r, c0, zb);
        if (!drop->threshold) {
            for (int64_t c = 0; c < n; c++) {
                const float v = b ? yr[c] + b[c] : yr[c];
                zr[c] = xr ? xr[c] + v : v;
            }
        } else {
            const float *f = drop_factors(&run, drop, d->unit0 + c0, n, drop_position(d, r), drop_sample(d, r));
            for (int64_t c = 0; c < n; c++) {
                const float v = (b ? yr[c] + b[c] : yr[c]) * f[c];
                zr[c] = xr ? xr[c] + v : v;
            }
        }
        row_put(z, r, c0, n, zr);
    }
}

/* Row r of norm_fwd; RMS norm is a mean of 0 and no b. */
static inline void norm_row(enum meg_norm kind, struct meg_mat y, float *mean, float *rstd, struct meg_mat x,
                            struct meg_mat w, struct meg_mat b, float eps, int64_t r)
{
    float xb[COL_BLOCK], yb[COL_BLOCK], wb[COL_BLOCK], bb[COL_BLOCK], s = 0.0f, s2 = 0.0f, mu = 0.0f, rs;
    if (kind == MEG_NORM_LAYER) {
        for (int64_t c0 = 0; c0 < x.cols; c0 += COL_BLOCK) {
            const int64_t n = min64(COL_BLOCK, x.cols - c0);
            const float *xr = row_get(x, r, c0, n, xb);
#pragma omp simd reduction(+ : s)
            for (int64_t c = 0; c < n; c++)
                s += xr[c];
        }
        mean[r] = mu = s / (float)x.cols;
    }
    for (int64_t c0 = 0; c0 < x.cols; c0 += COL_BLOCK) {
        const int64_t n = min64(COL_BLOCK, x.cols - c0);
        const float *xr = row_get(x, r, c0, n, xb);
#pragma omp simd reduction(+ : s2)
        for (int64_t c = 0; c < n; c++)
            s2 += (xr[c] - mu) * (xr[c] - mu);
    }
    rstd[r] = rs = 1.0f / sqrtf(s2 / (float)x.cols + eps);
    for (int64_t c0 = 0; c0 < x.cols; c0 += COL_BLOCK) {
        const int64_t n = min64(COL_BLOCK, x.cols - c0);
        const float *xr = row_get(x, r, c0, n, xb), *wr = row_get(w, 0, c0, n, wb);
        const float *br = row_get(b, 0, c0, n, bb);
        float *yr = row_out(y, r, c0, yb);
#pragma omp simd
        for (int64_t c = 0; c < n; c++) {
            const float v = (xr[c] - mu) * rs * wr[c];
            yr[c] = br ? v + br[c] : v;
        }
        row_put(y, r, c0, n, yr);
    }
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
