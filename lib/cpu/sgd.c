/* isa: baseline v3 v4 */
/* sgd.c - SGD with momentum.  One pass updates the parameters and, if requested, stores a copy of another type. */
#include "cpu/update.h"

static void sgd_block(struct update_block *b, const struct meg_update_range *range, float momentum,
                      const struct meg_step_hparams *step)
{
    const float scale = step->grad_scale;
    const float lr = step->lr[range->lr_index] * range->lr_mult, wd = step->weight_decay * range->wd_mult;
    const bool is_first = step->update == 1;
    const float *restrict g = b->g;
    float *restrict w = b->w, *restrict buf = b->state[0];
#pragma omp simd
    for (int64_t k = 0; k < b->n; k++) {
        const float gk = g[k] * scale + wd * w[k];
        const float bk = is_first ? gk : momentum * buf[k] + gk;
        buf[k] = bk;
        w[k] -= lr * bk;
    }
}

void MEG_FN(sgd)(struct meg_stream *st, const struct meg_sgd_args *a)
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
            sgd_block(&b, &a->range[i], a->momentum, a->step);
            update_end(&b, a->arrays, &a->range[i], a->step->update);
        }
    }
}
