#include "nn/linear.h"
#include "nn/sequence_parallel.h"

static const struct meg_mat none;

void meg_col_fwd(struct meg_ctx *c, struct meg_mat y, struct meg_mat pre, struct meg_mat x, const struct meg_lin *l,
                 enum meg_act act)
{
    c->op->linear_fwd(c->st, l->plan, y, pre, meg_shard_gather(c, x), l->w, l->bias, act);
}

void meg_col_bwd_weight(struct meg_ctx *c, struct meg_mat dy, struct meg_mat x, const struct meg_lin *l)
{
    c->op->linear_bwd_weight(c->st, l->plan, l->dw, l->dbias, dy, meg_shard_gather(c, x));
}

void meg_col_bwd(struct meg_ctx *c, struct meg_mat dx, struct meg_mat dy, struct meg_mat x, const struct meg_lin *l)
{
    const struct meg_mat addend = meg_shard_addend(c, dx);

    if (!c->defers_weights)
        meg_col_bwd_weight(c, dy, x, l);
    c->op->linear_bwd_data(c->st, l->plan, addend, dy, l->w, none, MEG_ACT_NONE);
    meg_shard_sum(c, dx, addend);
}

void meg_row_fwd(struct meg_ctx *c, struct meg_mat y, struct meg_mat x, const struct meg_lin *l)
{
    const struct meg_mat addend = meg_shard_addend(c, y);

    c->op->linear_fwd(c->st, l->plan, addend, none, x, l->w, NULL, MEG_ACT_NONE);
    meg_shard_sum(c, y, addend);
}

void meg_row_bwd(struct meg_ctx *c, struct meg_mat dx, struct meg_mat dy, struct meg_mat x, const struct meg_lin *l,
                 struct meg_mat pre, enum meg_act act)
{
    const struct meg_mat all = meg_shard_gather(c, dy);

    if (!c->defers_weights)
        c->op->linear_bwd_weight(c->st, l->plan, l->dw, NULL, all, x);
    c->op->linear_bwd_data(c->st, l->plan, dx, all, l->w, pre, act);
}

void meg_row_bwd_weight(struct meg_ctx *c, struct meg_mat dy, struct meg_mat x, const struct meg_lin *l)
{
    c->op->linear_bwd_weight(c->st, l->plan, l->dw, NULL, meg_shard_gather(c, dy), x);
}
