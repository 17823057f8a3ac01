/* mlp.c - feed-forward network. */
#include "nn/mlp.h"

struct mlp {
    struct meg_linear fc1, fc2;
    enum meg_act act; /* MEG_ACT_NONE if gated */
    bool is_gated;
    struct meg_glu glu;
};

/* Activations, or their gradients.  The gradient of mid is used only if the network is gated. */
struct mlp_acts {
    struct meg_mat pre;      /* input of the activation, [n,f] or, if gated, [n,2f]; not kept if pre.p is NULL */
    struct meg_mat mid;      /* output of the activation, [n,f] */
    struct meg_mat fc1, fc2; /* kept by the linear layers */
};

static void bind(struct meg_binder *b, void *weights, const void *conf, const struct meg_block_env *env)
{
    const struct meg_mlp_conf *c = conf;
    const int nparts = c->is_gated ? 2 : 1;
    const struct meg_linear_shape fc1 = {
        .out = nparts * c->f, .in = c->h, .nparts = nparts, .std = c->std, .has_bias = c->has_bias, .variant = c->linear
    };
    const struct meg_linear_shape fc2 = { .out = c->h,
                                          .in = c->f,
                                          .tp_dim = 1,
                                          .nparts = 1,
                                          .std = c->std_out,
                                          .has_bias = c->has_bias,
                                          .variant = c->linear };
    struct mlp *l = weights;
    (void)env;

    meg_bind_linear(b, &l->fc1, "mlp.linear_fc1", &fc1);
    meg_bind_linear(b, &l->fc2, "mlp.linear_fc2", &fc2);
    l->act = c->is_gated ? MEG_ACT_NONE : c->act;
    l->is_gated = c->is_gated;
    l->glu = c->glu;
}

static void suballoc(enum meg_block_memory what, void *to, const struct meg_block_arena *a, const void *conf)
{
    const struct meg_mlp_conf *c = conf;
    const int64_t f = c->f / a->tp, fc1 = c->is_gated ? 2 * f : f;
    const bool has_pre = a->is_training || c->is_gated; /* inference applies the activation in place */
    const bool has_deferred = what == MEG_BLOCK_DEFERRED_GRADS || (what == MEG_BLOCK_GRADS && !a->defers_wgrad);
    struct mlp_acts *acts = to;

    if ((what == MEG_BLOCK_ACTS && has_pre) || has_deferred)
        meg_block_mat(a, &acts->pre, a->n, fc1);
    if (what == MEG_BLOCK_ACTS || (what == MEG_BLOCK_GRADS && c->is_gated))
        meg_block_mat(a, &acts->mid, a->n, f);
    if (what == MEG_BLOCK_ACTS || has_deferred) {
        meg_block_kept(a, &acts->fc1, c->linear, a->n);
        meg_block_kept(a, &acts->fc2, c->linear, a->n);
    }
}

static struct meg_residual_bias residual_bias(const void *weights)
{
    const struct mlp *l = weights;

    return (struct meg_residual_bias){ l->fc2.bias, l->fc2.dbias };
}

static void fwd(struct meg_ctx *c, struct meg_mat y, struct meg_mat x, void *acts, const void *weights)
{
    const struct mlp *l = weights;
    const struct mlp_acts *a = acts;

    if (l->is_gated) {
        MEG_LINEAR(c, &l->fc1, fwd, .y = a->pre, .x = x, .kept = a->fc1);
        MEG_CALL(c->op, c->stream, glu_fwd, .unit = &l->glu, .y = a->mid, .x = a->pre);
    } else {
        MEG_LINEAR(c, &l->fc1, fwd, .y = a->mid, .pre = a->pre, .x = x, .act = l->act, .kept = a->fc1);
    }
    MEG_LINEAR(c, &l->fc2, fwd, .y = y, .x = a->mid, .kept = a->fc2);
}

static void bwd(struct meg_ctx *c, struct meg_mat dx, struct meg_mat dy, struct meg_mat x, const void *acts,
                void *grads, const void *weights)
{
    const struct mlp *l = weights;
    const struct mlp_acts *a = acts, *d = grads;

    if (l->is_gated) {
        MEG_LINEAR(c, &l->fc2, bwd, .dx = d->mid, .dy = dy, .x = a->mid, .kept = a->fc2, .d_kept = d->fc2);
        MEG_CALL(c->op, c->stream, glu_bwd, .unit = &l->glu, .dx = d->pre, .dy = d->mid, .x = a->pre);
    } else {
        MEG_LINEAR(c, &l->fc2, bwd, .dx = d->pre, .dy = dy, .x = a->mid, .pre = a->pre, .act = l->act, .kept = a->fc2,
                   .d_kept = d->fc2);
    }
    MEG_LINEAR(c, &l->fc1, bwd, .dx = dx, .dy = d->pre, .x = x, .kept = a->fc1, .d_kept = d->fc1);
}

static void bwd_weight(struct meg_ctx *c, struct meg_mat dy, struct meg_mat x, const void *acts, const void *grads,
                       const void *weights)
{
    const struct mlp *l = weights;
    const struct mlp_acts *a = acts, *d = grads;

    MEG_LINEAR(c, &l->fc2, bwd_weight, .dy = dy, .x = a->mid, .kept = a->fc2, .d_kept = d->fc2);
    MEG_LINEAR(c, &l->fc1, bwd_weight, .dy = d->pre, .x = x, .kept = a->fc1, .d_kept = d->fc1);
}

const struct meg_block_type meg_mlp_block = {
    .weights_size = sizeof(struct mlp),
    .acts_size = sizeof(struct mlp_acts),
    .grads_size = sizeof(struct mlp_acts),
    .bind = bind,
    .suballoc = suballoc,
    .residual_bias = residual_bias,
    .fwd = fwd,
    .bwd = bwd,
    .bwd_weight = bwd_weight,
};
