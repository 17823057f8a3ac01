/* mlp.c - feed-forward network. */
#include "nn/mlp.h"

static const struct meg_mat none;

void meg_mlp_fwd(struct meg_ctx *c, struct meg_mat y, struct meg_mat x, struct meg_mlp_acts *a, const struct meg_mlp *l)
{
    if (l->is_gated) {
        meg_column_parallel_fwd(c, a->pre, none, x, &l->fc1, MEG_ACT_NONE);
        c->op->glu_fwd(c->stream, &l->glu, a->mid, a->pre);
    } else {
        meg_column_parallel_fwd(c, a->mid, a->pre, x, &l->fc1, l->act);
    }
    meg_row_parallel_fwd(c, y, a->mid, &l->fc2);
}

void meg_mlp_bwd(struct meg_ctx *c, struct meg_mat dx, struct meg_mat dy, struct meg_mat x,
                 const struct meg_mlp_acts *a, const struct meg_mlp_acts *d, const struct meg_mlp *l)
{
    if (l->is_gated) {
        meg_row_parallel_bwd(c, d->mid, dy, a->mid, &l->fc2, none, MEG_ACT_NONE);
        c->op->glu_bwd(c->stream, &l->glu, d->pre, d->mid, a->pre);
    } else {
        meg_row_parallel_bwd(c, d->pre, dy, a->mid, &l->fc2, a->pre, l->act);
    }
    meg_column_parallel_bwd(c, dx, d->pre, x, &l->fc1);
}

void meg_mlp_bwd_weight(struct meg_ctx *c, struct meg_mat dy, struct meg_mat x, const struct meg_mlp_acts *a,
                        const struct meg_mlp_acts *d, const struct meg_mlp *l)
{
    meg_row_parallel_bwd_weight(c, dy, a->mid, &l->fc2);
    meg_column_parallel_bwd_weight(c, d->pre, x, &l->fc1);
}
