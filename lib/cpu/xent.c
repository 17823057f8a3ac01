/* isa: baseline v3 v4 */
/* Cross-entropy over rows of logits; the backward pass turns them into their gradient in place. */
#include <math.h>
#include "cpu/row.h"
#include "cpu/vmath.h"

void MEG_FN(xent_fwd)(struct meg_stream *st, float *loss, float *lse, struct meg_mat logits,
                      const int32_t *target)
{
    (void)st;
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < logits.rows; r++) {
        const float *x = f32(logits) + r * logits.ld;
        const float m = row_max(x, logits.cols);
        float s = 0.0f;
        MEG_ASSERT(target[r] >= 0 && target[r] < logits.cols);
#pragma omp simd reduction(+ : s)
        for (int64_t c = 0; c < logits.cols; c++)
            s += vexp(x[c] - m);
        lse[r] = m + logf(s);
        loss[r] = lse[r] - x[target[r]];
    }
}

void MEG_FN(xent_bwd)(struct meg_stream *st, struct meg_mat logits, const float *lse,
                      const int32_t *target, const float *weight)
{
    (void)st;
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < logits.rows; r++) {
        float *x = f32(logits) + r * logits.ld;
        const float l = lse[r], w = weight[r];
#pragma omp simd
        for (int64_t c = 0; c < logits.cols; c++)
            x[c] = w * vexp(x[c] - l);
        x[target[r]] -= w;
    }
}
