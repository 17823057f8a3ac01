/* isa: baseline v3 v4 */
/* sgd.c - SGD with momentum, in one pass that also zeroes the gradient. */
#include "cpu/internal.h"

enum { BLOCK = 8192 };

void MEG_FN(sgd)(struct meg_stream *st, float *restrict w, float *restrict g, float *restrict buf,
                 const struct meg_hparam_range *range, int nranges, float momentum, const struct meg_step_hparams *step)
{
    const float scale = step->grad_scale;
    const int is_first = step->is_first;
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
                    const float gk = g[k] * scale + wd * w[k];
                    const float b = is_first ? gk : momentum * buf[k] + gk;
                    buf[k] = b;
                    w[k] -= lr * b;
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
