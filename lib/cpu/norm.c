/* isa: baseline v3 v4 */
/*
 * norm.c - LayerNorm and RMSNorm, which is LayerNorm with mean 0 and without the bias b.  Rows are independent.  The
 * gradients of w and b are computed in blocks of columns; one thread sums a block over the rows, in order.
 */
#include "cpu/row.h"

enum { ROWS = 8, COLS = 128 }; /* rows per task of y and dx, columns per task of dw and db */

void MEG_FN(norm_fwd)(struct meg_stream *st, const struct meg_norm_fwd_args *a)
{
    (void)st;
    MEG_ASSERT_EQ(a->y.rows, a->x.rows);
    MEG_ASSERT_EQ(a->y.cols, a->x.cols);
#pragma omp parallel for schedule(static, ROWS)
    for (int64_t r = 0; r < a->x.rows; r++)
        norm_row(a, r);
}

/*
 * Compute row r of dx = skip + rstd * (g - mean(g) - n * mean(g * n)), where g = dy * (w + offset) and
 * n = (x - mean) * rstd.  RMSNorm has mean 0 and lacks the term mean(g).  If skip.p is NULL, nothing is added.
 */
static void bwd_row(const struct meg_norm_bwd_args *a, int64_t r)
{
    const struct meg_mat x = a->x, w = row_vector(a->w, a->dy.dtype, x.cols);
    const bool is_rms = meg_norm_is_rms(a->type);
    const float offset = meg_norm_offset(a->type, a->w), mean = is_rms ? 0.0f : a->mean[r], rstd = a->rstd[r];
    float xb[COL_BLOCK], wb[COL_BLOCK], dyb[COL_BLOCK], skipb[COL_BLOCK], dxb[COL_BLOCK], sg = 0.0f, sgn = 0.0f;
    for (int64_t c0 = 0; c0 < x.cols; c0 += COL_BLOCK) {
        const int64_t n = meg_min64(COL_BLOCK, x.cols - c0);
        const float *xr = row_read(x, r, c0, n, xb), *wr = row_read(w, 0, c0, n, wb);
        const float *dyr = row_read(a->dy, r, c0, n, dyb);
#pragma omp simd reduction(+ : sg, sgn)
        for (int64_t c = 0; c < n; c++) {
            const float g = dyr[c] * norm_weight(wr, c, offset);
            sg += g;
            sgn += g * ((xr[c] - mean) * rstd);
        }
    }
    sg = is_rms ? 0.0f : sg / (float)x.cols;
    sgn /= (float)x.cols;
    for (int64_t c0 = 0; c0 < x.cols; c0 += COL_BLOCK) {
        const int64_t n = meg_min64(COL_BLOCK, x.cols - c0);
        const float *xr = row_read(x, r, c0, n, xb), *wr = row_read(w, 0, c0, n, wb);
        const float *dyr = row_read(a->dy, r, c0, n, dyb), *skipr = row_read(a->skip, r, c0, n, skipb);
        float *dxr = row_out(a->dx, r, c0, dxb);
#pragma omp simd
        for (int64_t c = 0; c < n; c++) {
            const float v = rstd * (dyr[c] * norm_weight(wr, c, offset) - sg - (xr[c] - mean) * rstd * sgn);
            dxr[c] = skipr ? skipr[c] + v : v;
        }
        row_store(a->dx, r, c0, n, dxr);
    }
}

/* Compute columns [c0, c0 + n) of dw and, unless db.p is NULL, of db, n <= COLS. */
static void bwd_cols(const struct meg_norm_bwd_args *a, int64_t c0, int64_t n)
{
    const struct meg_mat dy = a->dy, x = a->x;
    const struct meg_mat dw = row_vector(a->dw, a->grad, x.cols), db = row_vector(a->db, a->grad, x.cols);
    float xb[COLS], dyb[COLS], dwb[COLS], dbb[COLS], *w = row_sum(dw, 0, c0, n, dwb, a->accumulate);
    float *b = db.p ? row_sum(db, 0, c0, n, dbb, a->accumulate) : NULL;
    for (int64_t r0 = 0; r0 < x.rows; r0 += 64) {
        float sw[COLS] = { 0 }, sb[COLS] = { 0 };
        for (int64_t r = r0; r < meg_min64(r0 + 64, x.rows); r++) {
            const float *dyr = row_read(dy, r, c0, n, dyb), *xr = row_read(x, r, c0, n, xb);
            const float rs = a->rstd[r], mu = meg_norm_is_rms(a->type) ? 0.0f : a->mean[r];
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

void MEG_FN(norm_bwd)(struct meg_stream *st, const struct meg_norm_bwd_args *a)
{
    (void)st;
    MEG_ASSERT(a->dw || !a->db);
    MEG_ASSERT_EQ(a->dx.rows, a->x.rows);
    MEG_ASSERT_EQ(a->dx.cols, a->x.cols);
    MEG_ASSERT_EQ(a->dy.rows, a->x.rows);
    MEG_ASSERT_EQ(a->dy.cols, a->x.cols);
    MEG_ASSERT(!a->skip.p || (a->skip.rows == a->x.rows && a->skip.cols == a->x.cols));
#pragma omp parallel
    {
#pragma omp for schedule(static, ROWS)
        for (int64_t r = 0; r < a->x.rows; r++)
            bwd_row(a, r);
#pragma omp for schedule(dynamic)
        for (int64_t c0 = 0; c0 < (a->dw ? a->x.cols : 0); c0 += COLS)
            bwd_cols(a, c0, meg_min64(COLS, a->x.cols - c0));
    }
}
