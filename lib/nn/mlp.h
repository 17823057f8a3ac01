/* Two linears with an activation between: y = act(x w1^T + b1) w2^T. */
#ifndef MEG_NN_MLP_H
#define MEG_NN_MLP_H
#include "nn/linear.h"

MEG_BEGIN_DECLS

struct meg_mlp {
    struct meg_lin fc1, fc2;
    enum meg_act act;
};

struct meg_mlp_acts {
    struct meg_mat pre, mid;     /* [n,f] before and after the activation */
};

/* y [n,h] without fc2's bias, which the residual adds. */
void meg_mlp_fwd(struct meg_ctx *c, struct meg_mat y, struct meg_mat x, struct meg_mlp_acts *a,
                 const struct meg_mlp *l);
/* dmid [n,f] is scratch. */
void meg_mlp_bwd(struct meg_ctx *c, struct meg_mat dx, struct meg_mat dy, struct meg_mat x,
                 const struct meg_mlp_acts *a, struct meg_mat dmid, const struct meg_mlp *l);

MEG_END_DECLS
#endif
