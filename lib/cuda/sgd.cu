/* sgd.cu - SGD with momentum.  One pass updates the parameters and, if requested, stores a copy of another type. */
#include "cuda/update.h"

struct sgd_rule {
    typedef float conf;
    float momentum, scale, lr, wd;
    bool is_first;

    __device__ sgd_rule(conf c, const struct meg_update_range &r, const struct meg_step_hparams &step)
        : momentum(c), scale(step.grad_scale), lr(step.lr[r.lr_index] * r.lr_mult), wd(step.weight_decay * r.wd_mult),
          is_first(step.update == 1)
    {
    }

    __device__ void apply(float &w, float g, float &buf, float &) const
    {
        g = g * scale + wd * w;
        buf = is_first ? g : momentum * buf + g;
        w -= lr * buf;
    }
};

void meg_cuda_sgd(struct meg_stream *st, const struct meg_sgd_args *a)
{
    launch_update<sgd_rule, absent>(st, a->arrays, a->range, a->nranges, a->momentum, a->step);
}
