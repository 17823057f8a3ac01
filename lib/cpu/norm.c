/* isa: baseline v3 v4 */
/*
 * norm.c - LayerNorm and RMSNorm, which is LayerNorm with mean 0 and without the bias b.  Rows are independent.  The
 * gradients of w and b are computed in blocks of columns; one thread sums a block over the rows, in order.
 */
#include "cpu/row.h"

enum { ROWS = 8, COLS = 128 }; /* rows per task of y and dx, columns per task of dw and db */

void MEG_FN(norm_fwd)(struct meg_stream *st, enum meg_norm type, struct meg_mat y, float *mean, float *rstd,
                      struct meg_mat x, const void *w, const void *b, float eps)
{
    (void)st;
    MEG_ASSERT_EQ(y.rows, x.rows);
    MEG_ASSERT_EQ(y.cols, x.cols);
#pragma omp parallel for schedule(static, ROWS)
    for (int64_t r = 0; r < x.rows; r++)
        norm_row(type, y, mean, rstd, x, row_vector(w, y.dtype, x.cols), row_vector(b, y.dtype, x.cols), eps, r);
}

/*
 * Compute row r of dx = skip + rstd * (g - mean(g) - n * mean(g * n)), where g = dy * (w + offset) and
 * n = (x - mean) * rstd.  RMSNorm has mean 0 and lacks the term mean(g).  If skip.p is NULL, nothing is added.
 */
static void bwd_row(enum meg_norm type, struct meg_mat dx, struct meg_mat skip, struct meg_mat dy, struct meg_mat x,
                    struct meg_mat w, float mean, float rstd, int64_t r)
{
    const float offset = meg_norm_offset(type);
    float xb[COL_BLOCK], wb[COL_BLOCK], dyb[COL_BLOCK], skipb[COL_BLOCK], dxb[COL_BLOCK], sg = 0.0f, sgn = 0.0f;
    for (int64_t c0 = 0; c0 < x.cols; c0 += COL_BLOCK) {
        const int64_t n = meg_min64(COL_BLOCK, x.cols - c0);
        const float *xr = row_read(x, r, c0, n, xb), *wr = row_read(w, 0, c0, n, wb);
        const float *dyr = row_read(dy, r, c0, n, dyb);
#pragma omp simd reduction(+ : sg, sgn)
        for (int64_t c = 0; c < n; c++) {
            const float g = dyr[c] * (wr[c] + offset);
            sg += g;
            sgn += g * ((xr[c] - mean) * rstd);
        }
    }
    sg = meg_norm_is_rms(type) ? 0.0f : sg / (float)x.cols;
    sgn /= (float)x.cols;
    for (int64_t c0 = 0; c0 < x.cols; c0 += COL_BLOCK) {
        const int64_t n = meg_min64(COL_BLOCK, x.cols - c0);
        const float *xr = row_read(x, r, c0, n, xb), *wr = row_read(w, 0, c0, n, wb);
        const float *dyr = row_read(dy, r, c0, n, dyb), *skipr = row_read(skip, r, c0, n, skipb);
        float *dxr = row_out(dx, r, c0, dxb);
#pragma omp simd
        for (int64_t c = 0; c < n; c++) {
            const float v = rstd * (dyr[c] * (wr[c] + offset) - sg - (xr[c] - mean) * rstd * sgn);
            dxr[c] = skipr ? skipr[c] + v : v;
        }
        row_store(dx, r, c0, n, dxr);
    }
}

/* Compute columns [c0, c0 + n) of dw and, unless db.p is NULL, of db, n <= COLS. */
static void bwd_cols(struct meg_mat dw, struct meg_mat db, struct meg_mat dy, struct meg_mat x, const float *mean,
                     const float *rstd, bool accumulate, int64_t c0, int64_t n)
{
    float xb[COLS], dyb[COLS], dwb[COLS], dbb[COLS], *w = row_sum(dw, 0, c0, n, dwb, accumulate);
    float *b = db.p ? row_sum(db, 0, c0, n, dbb, accumulate) : NULL;
    for (int64_t r0 = 0; r0 < x.rows; r0 += 64) {
        float sw[COLS] = { 0 }, sb[COLS] = { 0 };
        for (int64_t r = r0; r < meg_min64(r0 + 64, x.rows); r++) {
            const float *dyr = row_read(dy, r, c0, n, dyb), *xr = row_read(x, r, c0, n, xb);
            const float rs = rstd[r], mu = b ? mean[r] : 0.0f;
#pragma omp simd
            for (int64_t c = 0; c < n; c++) {
                sw[c] += dyr[c] * ((xr[c] - mu) * rs);
                sb[c] += dyr[c];
            }
        }
        for (int64_t c = 0; c < n; c++) {
            w[c] += sw[c];
            if (b)
                b[c] += sb[c];
        }
    }
    row_store(dw, 0, c0, n, w);
    if (b)
        row_store(db, 0, c0, n, b);
}

void MEG_FN(norm_bwd)(struct meg_stream *st, enum meg_norm type, struct meg_mat dx, void *dw, void *db,
                      enum meg_dtype grad, struct meg_mat skip, struct meg_mat dy, struct meg_mat x, const void *w,
                      const float *mean, const float *rstd, bool accumulate)
{
    (void)st;
    MEG_ASSERT(!db == meg_norm_is_rms(type));
    MEG_ASSERT_EQ(dx.rows, x.rows);
    MEG_ASSERT_EQ(dx.cols, x.cols);
    MEG_ASSERT_EQ(dy.rows, x.rows);
    MEG_ASSERT_EQ(dy.cols, x.cols);
    MEG_ASSERT(!skip.p || (skip.rows == x.rows && skip.cols == x.cols));
#pragma omp parallel
    {
#pragma omp for schedule(static, ROWS)
        for (int64_t r = 0; r < x.rows; r++)
            bwd_row(type, dx, skip, dy, x, row_vector(w, dy.dtype, x.cols), meg_norm_is_rms(type) ? 0.0f : mean[r],
                    rstd[r], r);
#pragma omp for schedule(dynamic)
        for (int64_t c0 = 0; c0 < x.cols; c0 += COLS)
            bwd_cols(row_vector(dw, grad, x.cols), row_vector(db, grad, x.cols), dy, x, mean, rstd, accumulate, c0,
                     meg_min64(COLS, x.cols - c0));
    }
}
