/* isa: baseline v3 v4 */
/* Cross-entropy over rows of logits; the backward pass turns them into their gradient in place. */
#include <math.h>
#include "cpu/row.h"
#include "cpu/vmath.h"

void MEG_FN(xent_part)(struct meg_stream *st, float *part, struct meg_mat logits,
                       const int32_t *target, int64_t v0)
{
    float *lse = part, *at_target = part + logits.rows;
    (void)st;
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < logits.rows; r++) {
        const float *x = f32(logits) + r * logits.ld;
        const float m = row_max(x, logits.cols);
        const int64_t t = target[r] - v0;
        float s = 0.0f;
#pragma omp simd reduction(+ : s)
        for (int64_t c = 0; c < logits.cols; c++)
            s += vexp(x[c] - m);
        lse[r] = m + logf(s);
        at_target[r] = t >= 0 && t < logits.cols ? x[t] : 0.0f;
    }
}

void MEG_FN(xent_join)(struct meg_stream *st, float *loss, float *lse, const float *part,
                       int64_t nparts, int64_t n)
{
    (void)st;
    for (int64_t r = 0; r < n; r++) {
        float m = -INFINITY, s = 0.0f, at_target = 0.0f;

        for (int64_t i = 0; i < nparts; i++)
            m = fmaxf(m, part[2 * n * i + r]);
        for (int64_t i = 0; i < nparts; i++) {
            s += expf(part[2 * n * i + r] - m);
            at_target += part[2 * n * i + n + r];
        }
        lse[r] = m + logf(s);
        loss[r] = lse[r] - at_target;
    }
}

void MEG_FN(xent_bwd)(struct meg_stream *st, struct meg_mat logits, const float *lse,
                      const int32_t *target, int64_t v0, const float *weight)
{
    (void)st;
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < logits.rows; r++) {
        float *x = f32(logits) + r * logits.ld;
        const float l = lse[r], w = weight[r];
        const int64_t t = target[r] - v0;
#pragma omp simd
        for (int64_t c = 0; c < logits.cols; c++)
            x[c] = w * vexp(x[c] - l);
        if (t >= 0 && t < logits.cols)
            x[t] -= w;
    }
}
