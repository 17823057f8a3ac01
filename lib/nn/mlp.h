/*
 * Two linears with an activation between: y = act(x w1^T + b1) w2^T + b2, or gated: fc1's output is
 * [gate | up] and silu(gate) * up goes on.
 */
#ifndef MEG_NN_MLP_H
#define MEG_NN_MLP_H
#include "nn/linear.h"

MEG_BEGIN_DECLS

struct meg_mlp {
    struct meg_linear_weights fc1, fc2;
    enum meg_act act; /* NONE when gated */
    int is_gated;
};

struct meg_mlp_acts {
    struct meg_mat pre; /* [n,f], gated [n,2f]: before the activation; p NULL where nothing is kept */
    struct meg_mat mid; /* [n,f] after it */
};

/* y [n,h] without fc2's bias, which the residual adds. */
void meg_mlp_fwd(struct meg_ctx *c, struct meg_mat y, struct meg_mat x, struct meg_mlp_acts *a,
                 const struct meg_mlp *l);
/* d: scratch shaped as the activations; mid is used when gated only. */
void meg_mlp_bwd(struct meg_ctx *c, struct meg_mat dx, struct meg_mat dy, struct meg_mat x,
                 const struct meg_mlp_acts *a, const struct meg_mlp_acts *d, const struct meg_mlp *l);
/* The gradients of the weights that meg_mlp_bwd left, from what it was given. */
void meg_mlp_bwd_weight(struct meg_ctx *c, struct meg_mat dy, struct meg_mat x, const struct meg_mlp_acts *a,
                        const struct meg_mlp_acts *d, const struct meg_mlp *l);

MEG_END_DECLS
#endif
