/* row.h - operations on one row of a matrix: read and write it as f32, add the residual, normalize. */
#ifndef MEG_CPU_ROW_H
#define MEG_CPU_ROW_H
#include "cpu/dropout.h"

/*
 * Most operations convert at most COL_BLOCK columns of a row to f32 at a time.  They use an f32 matrix in place.  A
 * bf16 or f16 matrix is converted to f32 in a buffer, and results are rounded when they are stored.
 */
enum { COL_BLOCK = 1024 };

/* Return columns [c0, c0 + n) of row r as f32: in place, or converted into buf [n].  Return NULL if m.p is NULL. */
static inline const float *row_read(struct meg_mat m, int64_t r, int64_t c0, int64_t n, float *buf)
{
    if (m.dtype == MEG_DTYPE_F32)
        return m.p ? (const float *)element(m, r, c0) : NULL;
    if (!m.p)
        return NULL;
    MEG_FN(to_f32)(buf, element(m, r, c0), m.dtype, n);
    return buf;
}

/*
 * Return the f32 array in which to compute row r from column c0 on: the matrix if it is f32, else buf.  row_store later
 * converts buf into the matrix.
 */
static inline float *row_out(struct meg_mat m, int64_t r, int64_t c0, float *buf)
{
    return m.dtype == MEG_DTYPE_F32 ? (float *)element(m, r, c0) : buf;
}

/* Like row_out, but the returned array contains the current values of the row; the caller adds to these values. */
static inline float *row_load(struct meg_mat m, int64_t r, int64_t c0, int64_t n, float *buf)
{
    row_read(m, r, c0, n, buf);
    return row_out(m, r, c0, buf);
}

/* Like row_load, but if `accumulate` is false, the returned array [n] is zero. */
static inline float *row_sum(struct meg_mat m, int64_t r, int64_t c0, int64_t n, float *buf, bool accumulate)
{
    float *sum = row_out(m, r, c0, buf);

    if (accumulate)
        return row_load(m, r, c0, n, buf);
    memset(sum, 0, (size_t)n * sizeof *sum);
    return sum;
}

static inline void row_store(struct meg_mat m, int64_t r, int64_t c0, int64_t n, const float *v)
{
    if (m.dtype != MEG_DTYPE_F32)
        MEG_FN(from_f32)(element(m, r, c0), m.dtype, v, n);
}

/*
 * Compute row r of z = x + dropout(y + bias).  bias is a matrix of one row; x and bias are omitted if their p is NULL.
 */
static inline void add_row(struct meg_mat z, struct meg_mat x, struct meg_mat y, struct meg_mat bias,
                           const struct dropout *drop, int64_t r)
{
    struct drop_buf buf;
    float xb[DROP_BLOCK], yb[DROP_BLOCK], bb[DROP_BLOCK], zb[DROP_BLOCK];
    for (int64_t c0 = 0; c0 < z.cols; c0 += DROP_BLOCK) {
        const int64_t n = meg_min64(DROP_BLOCK, z.cols - c0);
        const float *xr = row_read(x, r, c0, n, xb), *yr = row_read(y, r, c0, n, yb);
        const float *b = row_read(bias, 0, c0, n, bb);
        float *zr = row_out(z, r, c0, zb);
        if (!drop->threshold) {
            for (int64_t c = 0; c < n; c++) {
                const float v = b ? yr[c] + b[c] : yr[c];
                zr[c] = xr ? xr[c] + v : v;
            }
        } else {
            const float *f = drop_factors_of_row(&buf, drop, r, c0, n);
            for (int64_t c = 0; c < n; c++) {
                const float v = (b ? yr[c] + b[c] : yr[c]) * f[c];
                zr[c] = xr ? xr[c] + v : v;
            }
        }
        row_store(z, r, c0, n, zr);
    }
}

/* Return weight c of a norm, with its offset; 1 if w is NULL. */
static inline float norm_weight(const float *w, int64_t c, float offset)
{
    return w ? w[c] + offset : offset;
}

/* Compute row r of norm_fwd.  RMSNorm uses mean 0 and no bias, and does not write mean. */
static inline void norm_row(const struct meg_norm_fwd_args *a, int64_t r)
{
    const struct meg_mat y = a->y, x = a->x;
    const struct meg_mat w = row_vector(a->w, y.dtype, x.cols), b = row_vector(a->b, y.dtype, x.cols);
    const float offset = meg_norm_offset(a->type, a->w);
    float xb[COL_BLOCK], yb[COL_BLOCK], wb[COL_BLOCK], bb[COL_BLOCK], s = 0.0f, s2 = 0.0f, mu = 0.0f, rs;
    if (!meg_norm_is_rms(a->type)) {
        for (int64_t c0 = 0; c0 < x.cols; c0 += COL_BLOCK) {
            const int64_t n = meg_min64(COL_BLOCK, x.cols - c0);
            const float *xr = row_read(x, r, c0, n, xb);
#pragma omp simd reduction(+ : s)
            for (int64_t c = 0; c < n; c++)
                s += xr[c];
        }
        a->mean[r] = mu = s / (float)x.cols;
    }
    for (int64_t c0 = 0; c0 < x.cols; c0 += COL_BLOCK) {
        const int64_t n = meg_min64(COL_BLOCK, x.cols - c0);
        const float *xr = row_read(x, r, c0, n, xb);
#pragma omp simd reduction(+ : s2)
        for (int64_t c = 0; c < n; c++)
            s2 += (xr[c] - mu) * (xr[c] - mu);
    }
    a->rstd[r] = rs = 1.0f / sqrtf(s2 / (float)x.cols + a->eps);
    for (int64_t c0 = 0; c0 < x.cols; c0 += COL_BLOCK) {
        const int64_t n = meg_min64(COL_BLOCK, x.cols - c0);
        const float *xr = row_read(x, r, c0, n, xb), *wr = row_read(w, 0, c0, n, wb);
        const float *br = row_read(b, 0, c0, n, bb);
        float *yr = row_out(y, r, c0, yb);
#pragma omp simd
        for (int64_t c = 0; c < n; c++) {
            const float v = (xr[c] - mu) * rs * norm_weight(wr, c, offset);
            yr[c] = br ? v + br[c] : v;
        }
        row_store(y, r, c0, n, yr);
    }
}

/* Set x[l] to the maximum of x[l] and y[l]; x keeps its value where y is NaN. */
static inline void max_into(float *x, const float *y, int64_t n)
{
#pragma omp simd
    for (int64_t l = 0; l < n; l++)
        x[l] = y[l] > x[l] ? y[l] : x[l];
}

/* Return the maximum of x[0..n), ignoring NaN; -infinity if there is no number. */
static inline float row_max(const float *x, int64_t n)
{
    enum { LANES = 64 };
    float lane[LANES];
    int64_t c = 0;
    for (int l = 0; l < LANES; l++)
        lane[l] = -INFINITY;
    for (; c + LANES <= n; c += LANES)
        max_into(lane, x + c, LANES);
    max_into(lane, x + c, n - c);
    for (int half = LANES / 2; half; half /= 2)
        max_into(lane, lane + half, half);
    return lane[0];
}

#endif
