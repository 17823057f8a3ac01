/* isa: baseline v3 v4 */
/* Layer norm and RMS norm (a mean of 0, no b): rows are independent; gradients of w and b go by columns, rows in order. */
#include "cpu/row.h"

enum { ROWS = 8, COLS = 128 }; /* a task of a thread, in rows or in columns */

void MEG_FN(norm_fwd)(struct meg_stream *st, enum meg_norm kind, struct meg_mat y, float *mean,
                      float *rstd, struct meg_mat x, const void *w, const void *b, float eps)
{
    (void)st;
    MEG_ASSERT(y.rows == x.rows && y.cols == x.cols);
#pragma omp parallel for schedule(static, ROWS)
    for (int64_t r = 0; r < x.rows; r++)
        norm_row(kind, f32(y) + r * y.ld, mean, rstd, f32(x) + r * x.ld, w, b, x.cols, eps, r);
}

/* With g = dy w and n = (x - mean) rstd:  dx = skip + rstd (g - mean(g) - n mean(g n)), RMS without mean(g). */
static void bwd_row(enum meg_norm kind, float *dx, const float *skip, const float *dy,
                    const float *x, const float *w, int64_t n, float mean, float rstd)
{
    float sg = 0.0f, sgn = 0.0f;
#pragma omp simd reduction(+ : sg, sgn)
    for (int64_t c = 0; c < n; c++) {
        const float g = dy[c] * w[c];
        sg += g;
        sgn += g * ((x[c] - mean) * rstd);
    }
    sg = kind == MEG_NORM_RMS ? 0.0f : sg / (float)n;
    sgn /= (float)n;
#pragma omp simd
    for (int64_t c = 0; c < n; c++) {
        const float v = rstd * (dy[c] * w[c] - sg - (x[c] - mean) * rstd * sgn);
        dx[c] = skip ? skip[c] + v : v;
    }
}

/* dw, db of columns [c0, c0 + n), n <= COLS. */
static void bwd_cols(float *dw, float *db, struct meg_mat dy, struct meg_mat x, const float *mean,
                     const float *rstd, int64_t c0, int64_t n)
{
    for (int64_t r0 = 0; r0 < x.rows; r0 += 64) {
        float sw[COLS] = { 0 }, sb[COLS] = { 0 };
        for (int64_t r = r0; r < min64(r0 + 64, x.rows); r++) {
            const float *dyr = f32(dy) + r * dy.ld + c0, *xr = f32(x) + r * x.ld + c0, rs = rstd[r];
            const float mu = db ? mean[r] : 0.0f;
#pragma omp simd
            for (int64_t c = 0; c < n; c++) {
                sw[c] += dyr[c] * ((xr[c] - mu) * rs);
                sb[c] += dyr[c];
            }
        }
        for (int64_t c = 0; c < n; c++) {
            dw[c0 + c] += sw[c];
            if (db)
                db[c0 + c] += sb[c];
        }
    }
}

void MEG_FN(norm_bwd)(struct meg_stream *st, enum meg_norm kind, struct meg_mat dx, float *dw,
                      float *db, struct meg_mat skip, struct meg_mat dy, struct meg_mat x,
                      const void *w, const float *mean, const float *rstd)
{
    (void)st;
    MEG_ASSERT(!db == (kind == MEG_NORM_RMS) && dx.rows == x.rows && dx.cols == x.cols &&
               dy.rows == x.rows && dy.cols == x.cols &&
               (!skip.p || (skip.rows == x.rows && skip.cols == x.cols)));
#pragma omp parallel
    {
#pragma omp for schedule(static, ROWS)
        for (int64_t r = 0; r < x.rows; r++)
            bwd_row(kind, f32(dx) + r * dx.ld, skip.p ? f32(skip) + r * skip.ld : NULL,
                    f32(dy) + r * dy.ld, f32(x) + r * x.ld, w, x.cols,
                    kind == MEG_NORM_RMS ? 0.0f : mean[r], rstd[r]);
#pragma omp for schedule(dynamic)
        for (int64_t c0 = 0; c0 < x.cols; c0 += COLS)
            bwd_cols(dw, db, dy, x, mean, rstd, c0, min64(COLS, x.cols - c0));
    }
}
