/* isa: baseline v3 v4 */
/* silu(gate) * up and its gradient, row by row. */
#include "cpu/vmath.h"
#include "cpu/internal.h"

enum { ROWS = 8 }; /* a task of a thread */

static void check(struct meg_mat y, struct meg_mat x)
{
    MEG_ASSERT(y.rows == x.rows && x.cols == 2 * y.cols);
}

void MEG_FN(swiglu_fwd)(struct meg_stream *st, struct meg_mat y, struct meg_mat x)
{
    (void)st;
    check(y, x);
#pragma omp parallel for schedule(static, ROWS)
    for (int64_t r = 0; r < x.rows; r++) {
        const float *gate = f32(x) + r * x.ld, *up = gate + y.cols;
        float *o = f32(y) + r * y.ld;
#pragma omp simd
        for (int64_t c = 0; c < y.cols; c++)
            o[c] = gate[c] / (1.0f + vexp(-gate[c])) * up[c];
    }
}

/* With s = sigmoid(gate):  d gate = dy up s (1 + gate (1 - s)),  d up = dy gate s. */
void MEG_FN(swiglu_bwd)(struct meg_stream *st, struct meg_mat dx, struct meg_mat dy, struct meg_mat x)
{
    (void)st;
    check(dy, x);
    check(dy, dx);
#pragma omp parallel for schedule(static, ROWS)
    for (int64_t r = 0; r < x.rows; r++) {
        const float *gate = f32(x) + r * x.ld, *up = gate + dy.cols, *d = f32(dy) + r * dy.ld;
        float *dgate = f32(dx) + r * dx.ld, *dup = dgate + dy.cols;
#pragma omp simd
        for (int64_t c = 0; c < dy.cols; c++) {
            const float a = gate[c], u = up[c], s = 1.0f / (1.0f + vexp(-a));
            dgate[c] = d[c] * u * s * (1.0f + a * (1.0f - s));
            dup[c] = d[c] * a * s;
        }
    }
}
