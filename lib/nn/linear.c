#include "nn/linear.h"

static const struct meg_mat none;

void meg_col_fwd(struct meg_ctx *c, struct meg_mat y, struct meg_mat pre, struct meg_mat x, const struct meg_lin *l,
                 enum meg_act act)
{
    c->op->linear_fwd(c->st, l->plan, y, pre, x, l->w, l->bias, act);
}

void meg_col_bwd(struct meg_ctx *c, struct meg_mat dx, struct meg_mat dy, struct meg_mat x, const struct meg_lin *l)
{
    c->op->linear_bwd_weight(c->st, l->plan, l->dw, l->dbias, dy, x);
    c->op->linear_bwd_data(c->st, l->plan, dx, dy, l->w, none, MEG_ACT_NONE);
    meg_all_reduce(c->tp, dx.p, dx.rows * dx.cols, dx.dtype, MEG_SUM);
}

void meg_row_fwd(struct meg_ctx *c, struct meg_mat y, struct meg_mat x, const struct meg_lin *l)
{
    c->op->linear_fwd(c->st, l->plan, y, none, x, l->w, NULL, MEG_ACT_NONE);
    meg_all_reduce(c->tp, y.p, y.rows * y.cols, y.dtype, MEG_SUM);
}

void meg_row_bwd(struct meg_ctx *c, struct meg_mat dx, struct meg_mat dy, struct meg_mat x, const struct meg_lin *l,
                 struct meg_mat pre, enum meg_act act)
{
    c->op->linear_bwd_weight(c->st, l->plan, l->dw, NULL, dy, x);
    c->op->linear_bwd_data(c->st, l->plan, dx, dy, l->w, pre, act);
}
