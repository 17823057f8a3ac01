/*
 * mlp.h - feed-forward network: y = act(x w1^T + b1) w2^T + b2.  In a gated network, fc1's output is [gate | up] and
 * fc2's input is that of a gated linear unit, such as SwiGLU's silu(gate) * up.
 */
#ifndef MEG_NN_MLP_H
#define MEG_NN_MLP_H
#include "nn/linear.h"

MEG_BEGIN_DECLS

struct meg_mlp {
    struct meg_linear_weights fc1, fc2;
    enum meg_act act; /* MEG_ACT_NONE if gated */
    int is_gated;
    struct meg_glu glu; /* the unit, if gated */
};

struct meg_mlp_acts {
    struct meg_mat pre; /* input of the activation, [n,f] or, if gated, [n,2f]; not kept if pre.p is NULL */
    struct meg_mat mid; /* output of the activation, [n,f] */
};

/* Compute y [n,h] without the bias of fc2, which meg_add_fwd adds (struct meg_residual_epilogue in nn/norm.h). */
void meg_mlp_fwd(struct meg_ctx *c, struct meg_mat y, struct meg_mat x, struct meg_mlp_acts *a,
                 const struct meg_mlp *l);
/*
 * Compute dx from dy and, unless c->defers_wgrad, the weight gradients.  The gradients of the activations are
 * written to d; d->mid is used only if gated.
 */
void meg_mlp_bwd(struct meg_ctx *c, struct meg_mat dx, struct meg_mat dy, struct meg_mat x,
                 const struct meg_mlp_acts *a, const struct meg_mlp_acts *d, const struct meg_mlp *l);
/* Compute the weight gradients that meg_mlp_bwd deferred (c->defers_wgrad); pass the arguments of meg_mlp_bwd. */
void meg_mlp_bwd_weight(struct meg_ctx *c, struct meg_mat dy, struct meg_mat x, const struct meg_mlp_acts *a,
                        const struct meg_mlp_acts *d, const struct meg_mlp *l);

MEG_END_DECLS
#endif
