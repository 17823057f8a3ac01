/*
 * adamw.cu - AdamW.  One pass scales the gradients, updates the parameters and moments, and stores a copy if requested.
 */
#include "cuda/update.h"

struct adamw_rule {
    typedef struct meg_adam conf;
    float beta1, beta2, eps, scale, inv_c1, inv_c2, lr, wd;

    __device__ adamw_rule(const conf &c, const struct meg_update_range &r, const struct meg_step_hparams &step)
        : beta1(c.beta1), beta2(c.beta2), eps(c.eps), scale(step.grad_scale), inv_c1(1.0f / step.adam_c1),
          inv_c2(1.0f / step.adam_c2), lr(step.lr[r.lr_index] * r.lr_mult), wd(step.weight_decay * r.wd_mult)
    {
    }

    __device__ void apply(float &w, float g, float &m, float &v) const
    {
        g *= scale;
        m = beta1 * m + (1.0f - beta1) * g;
        v = beta2 * v + (1.0f - beta2) * (g * g);
        w -= lr * (m * inv_c1 / (sqrtf(v * inv_c2) + eps) + wd * w);
    }
};

void meg_cuda_adamw(struct meg_stream *st, const struct meg_adamw_args *a)
{
    with_state_type(a->arrays->state[1].dtype, [&](auto v) {
        launch_update<adamw_rule, decltype(v)>(st, a->arrays, a->range, a->nranges, *a->adam, a->step);
    });
}
