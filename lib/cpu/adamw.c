/* isa: baseline v3 v4 */
/* adamw.c - AdamW in one pass over the four buffers: scale the gradient, update, and zero the gradient. */
#include <math.h>
#include "cpu/internal.h"

enum { BLOCK = 8192 };

void MEG_FN(adamw)(struct meg_stream *st, float *restrict w, float *restrict g, float *restrict m, float *restrict v,
                   const struct meg_hparam_range *range, int nranges, const struct meg_adam *adam,
                   const struct meg_step_hparams *step)
{
    const float b1 = adam->beta1, b2 = adam->beta2, eps = adam->eps, scale = step->grad_scale;
    const float inv_c1 = 1.0f / step->adam_c1, inv_c2 = 1.0f / step->adam_c2;
    (void)st;
#pragma omp parallel
    for (int i = 0; i < nranges; i++) {
        const float lr = step->lr[range[i].lr_index] * range[i].lr_mult;
        const float wd = step->weight_decay * range[i].wd_mult;
        const int64_t end = range[i].end;
#pragma omp for schedule(static) nowait
        for (int64_t k0 = range[i].begin; k0 < end; k0 += BLOCK) {
            const int64_t k1 = min64(end, k0 + BLOCK);
            if (!step->skip) {
#pragma omp simd
                for (int64_t k = k0; k < k1; k++) {
                    const float gk = g[k] * scale;
                    const float mk = b1 * m[k] + (1.0f - b1) * gk;
                    const float vk = b2 * v[k] + (1.0f - b2) * (gk * gk);
                    m[k] = mk;
                    v[k] = vk;
                    w[k] -= lr * (mk * inv_c1 / (sqrtf(vk * inv_c2) + eps) + wd * w[k]);
                    g[k] = 0.0f;
                }
            } else {
#pragma omp simd
                for (int64_t k = k0; k < k1; k++)
                    g[k] = 0.0f;
            }
        }
    }
}
