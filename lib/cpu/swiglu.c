/* isa: baseline v3 v4 */
/* swiglu.c - SwiGLU, silu(gate) * up, and its gradient. */
#include "cpu/row.h"
#include "cpu/vmath.h"

enum { ROWS = 8 }; /* rows per task */

static void check(struct meg_mat y, struct meg_mat x)
{
    MEG_ASSERT_EQ(y.rows, x.rows);
    MEG_ASSERT_EQ(x.cols, 2 * y.cols);
}

void MEG_FN(swiglu_fwd)(struct meg_stream *st, struct meg_mat y, struct meg_mat x)
{
    (void)st;
    check(y, x);
#pragma omp parallel for schedule(static, ROWS)
    for (int64_t r = 0; r < x.rows; r++)
        for (int64_t c0 = 0; c0 < y.cols; c0 += COL_BLOCK) {
            const int64_t n = min64(COL_BLOCK, y.cols - c0);
            float gb[COL_BLOCK], ub[COL_BLOCK], yb[COL_BLOCK], *o = row_out(y, r, c0, yb);
            const float *gate = row_read(x, r, c0, n, gb), *up = row_read(x, r, y.cols + c0, n, ub);
#pragma omp simd
            for (int64_t c = 0; c < n; c++)
                o[c] = gate[c] / (1.0f + vexp(-gate[c])) * up[c];
            row_store(y, r, c0, n, o);
        }
}

/* With s = sigmoid(gate): d_gate = dy * up * s * (1 + gate * (1 - s)), d_up = dy * gate * s. */
void MEG_FN(swiglu_bwd)(struct meg_stream *st, struct meg_mat dx, struct meg_mat dy, struct meg_mat x)
{
    (void)st;
    check(dy, x);
    check(dy, dx);
#pragma omp parallel for schedule(static, ROWS)
    for (int64_t r = 0; r < x.rows; r++)
        for (int64_t c0 = 0; c0 < dy.cols; c0 += COL_BLOCK) {
            const int64_t n = min64(COL_BLOCK, dy.cols - c0);
            float gb[COL_BLOCK], ub[COL_BLOCK], db[COL_BLOCK], dgb[COL_BLOCK], dub[COL_BLOCK];
            const float *gate = row_read(x, r, c0, n, gb), *up = row_read(x, r, dy.cols + c0, n, ub);
            const float *d = row_read(dy, r, c0, n, db);
            float *dgate = row_out(dx, r, c0, dgb), *dup = row_out(dx, r, dy.cols + c0, dub);
#pragma omp simd
            for (int64_t c = 0; c < n; c++) {
                const float a = gate[c], u = up[c], s = 1.0f / (1.0f + vexp(-a));
                dgate[c] = d[c] * u * s * (1.0f + a * (1.0f - s));
                dup[c] = d[c] * a * s;
            }
            row_store(dx, r, c0, n, dgate);
            row_store(dx, r, dy.cols + c0, n, dup);
        }
}
