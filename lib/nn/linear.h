/*
 * Linear layers, their weight cut over tensor-parallel ranks (Shoeybi et al. 2019, section 3):
 * a column linear holds rows of w (outputs), a row linear columns of it (inputs).  What goes into the
 * one and comes out of the other are rows of the residual stream (nn/sequence_parallel.h).
 *
 * Backward gives both gradients, or with c->defers_weights that of the input only, and bwd_weight later
 * that of the weight, from the same dy and x.
 */
#ifndef MEG_NN_LINEAR_H
#define MEG_NN_LINEAR_H
#include "nn/ctx.h"

MEG_BEGIN_DECLS

struct meg_linear_weights {
    struct meg_mat w, dw; /* [out, in] of this rank; dw.p NULL when not training */
    void *bias;           /* [out], or NULL */
    void *dbias;
    struct meg_linear *plan;
};

/* y [n,out] = act(x w^T + bias); pre keeps what act was applied to, its p NULL for not at all. */
void meg_column_parallel_fwd(struct meg_ctx *c, struct meg_mat y, struct meg_mat pre, struct meg_mat x,
                             const struct meg_linear_weights *l, enum meg_act act);
/* dx from dy [n,out], summed over tp; gradients of w and bias are added to. */
void meg_column_parallel_bwd(struct meg_ctx *c, struct meg_mat dx, struct meg_mat dy, struct meg_mat x,
                             const struct meg_linear_weights *l);
void meg_column_parallel_bwd_weight(struct meg_ctx *c, struct meg_mat dy, struct meg_mat x,
                                    const struct meg_linear_weights *l);

/* y = x [n,in] w^T, summed over tp; the bias is left to whoever adds y to the residual. */
void meg_row_parallel_fwd(struct meg_ctx *c, struct meg_mat y, struct meg_mat x, const struct meg_linear_weights *l);
/* dx [n,in] = dy w * act'(pre), for the x = act(pre) that went in; the gradient of w is added to. */
void meg_row_parallel_bwd(struct meg_ctx *c, struct meg_mat dx, struct meg_mat dy, struct meg_mat x,
                          const struct meg_linear_weights *l, struct meg_mat pre, enum meg_act act);
void meg_row_parallel_bwd_weight(struct meg_ctx *c, struct meg_mat dy, struct meg_mat x,
                                 const struct meg_linear_weights *l);

MEG_END_DECLS
#endif
