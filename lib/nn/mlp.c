#include "nn/mlp.h"

void meg_mlp_fwd(struct meg_ctx *c, struct meg_mat y, struct meg_mat x, struct meg_mlp_acts *a,
                 const struct meg_mlp *l)
{
    meg_col_fwd(c, a->mid, a->pre, x, &l->fc1, l->act);
    meg_row_fwd(c, y, a->mid, &l->fc2);
}

void meg_mlp_bwd(struct meg_ctx *c, struct meg_mat dx, struct meg_mat dy, struct meg_mat x,
                 const struct meg_mlp_acts *a, struct meg_mat dmid, const struct meg_mlp *l)
{
    meg_row_bwd(c, dmid, dy, a->mid, &l->fc2, a->pre, l->act);
    meg_col_bwd(c, dx, dmid, x, &l->fc1);
}
