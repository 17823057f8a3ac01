/* isa: baseline v3 v4 */
/*
 * adamw.c - AdamW.  One pass scales the gradients, updates the parameters and moments, and stores a copy if requested.
 */
#include <math.h>
#include "cpu/update.h"

static void adamw_block(struct update_block *b, const struct meg_update_range *range, const struct meg_adam *adam,
                        const struct meg_step_hparams *step)
{
    const float b1 = adam->beta1, b2 = adam->beta2, eps = adam->eps, scale = step->grad_scale;
    const float inv_c1 = 1.0f / step->adam_c1, inv_c2 = 1.0f / step->adam_c2;
    const float lr = step->lr[range->lr_index] * range->lr_mult, wd = step->weight_decay * range->wd_mult;
    const float *restrict g = b->g;
    float *restrict w = b->w, *restrict m = b->state[0], *restrict v = b->state[1];
#pragma omp simd
    for (int64_t k = 0; k < b->n; k++) {
        const float gk = g[k] * scale;
        const float mk = b1 * m[k] + (1.0f - b1) * gk;
        const float vk = b2 * v[k] + (1.0f - b2) * (gk * gk);
        m[k] = mk;
        v[k] = vk;
        w[k] -= lr * (mk * inv_c1 / (sqrtf(vk * inv_c2) + eps) + wd * w[k]);
    }
}

void MEG_FN(adamw)(struct meg_stream *st, const struct meg_adamw_args *a)
{
    (void)st;
    if (a->step->skip)
        return;
#pragma omp parallel
    for (int i = 0; i < a->nranges; i++) {
#pragma omp for schedule(static) nowait
        for (int64_t at = a->range[i].begin; at < a->range[i].end; at += COL_BLOCK) {
            struct update_block b;

            update_begin(&b, a->arrays, &a->range[i], at);
            adamw_block(&b, &a->range[i], a->adam, a->step);
            update_end(&b, a->arrays, &a->range[i], a->step->update);
        }
    }
}
