/* linear.c - column-parallel and row-parallel linear layers. */
#include "nn/linear.h"
#include "nn/sequence_parallel.h"

static const struct meg_mat none;

void meg_column_parallel_fwd(struct meg_ctx *c, struct meg_mat y, struct meg_mat pre, struct meg_mat x,
                             const struct meg_linear_weights *l, enum meg_act act)
{
    c->op->linear_fwd(c->stream, l->plan, y, pre, meg_sp_gather(c, x), l->w, l->bias, act);
}

void meg_column_parallel_bwd_weight(struct meg_ctx *c, struct meg_mat dy, struct meg_mat x,
                                    const struct meg_linear_weights *l)
{
    c->op->linear_bwd_weight(c->stream, l->plan, l->dw, l->dbias, dy, meg_sp_gather(c, x), c->accumulates_grads);
}

void meg_column_parallel_bwd(struct meg_ctx *c, struct meg_mat dx, struct meg_mat dy, struct meg_mat x,
                             const struct meg_linear_weights *l)
{
    const struct meg_mat partial = meg_sp_partial_sum(c, dx);

    if (!c->defers_wgrad)
        meg_column_parallel_bwd_weight(c, dy, x, l);
    c->op->linear_bwd_data(c->stream, l->plan, partial, dy, l->w, none, MEG_ACT_NONE);
    meg_sp_reduce(c, dx, partial);
}

void meg_row_parallel_fwd(struct meg_ctx *c, struct meg_mat y, struct meg_mat x, const struct meg_linear_weights *l)
{
    const struct meg_mat partial = meg_sp_partial_sum(c, y);

    c->op->linear_fwd(c->stream, l->plan, partial, none, x, l->w, NULL, MEG_ACT_NONE);
    meg_sp_reduce(c, y, partial);
}

void meg_row_parallel_bwd(struct meg_ctx *c, struct meg_mat dx, struct meg_mat dy, struct meg_mat x,
                          const struct meg_linear_weights *l, struct meg_mat pre, enum meg_act act)
{
    const struct meg_mat all = meg_sp_gather(c, dy);

    if (!c->defers_wgrad)
        c->op->linear_bwd_weight(c->stream, l->plan, l->dw, NULL, all, x, c->accumulates_grads);
    c->op->linear_bwd_data(c->stream, l->plan, dx, all, l->w, pre, act);
}

void meg_row_parallel_bwd_weight(struct meg_ctx *c, struct meg_mat dy, struct meg_mat x,
                                 const struct meg_linear_weights *l)
{
    c->op->linear_bwd_weight(c->stream, l->plan, l->dw, NULL, meg_sp_gather(c, dy), x, c->accumulates_grads);
}
