/* A norm, alone and behind a residual: z = x + drop(branch + bias), y = norm(z). */
#ifndef MEG_NN_NORM_H
#define MEG_NN_NORM_H
#include "nn/ctx.h"

MEG_BEGIN_DECLS

struct meg_norm_weights {
    enum meg_norm type;
    void *w, *b; /* [h]; b NULL for RMS norm */
    void *dw, *db;
    float eps;
};

/* Row statistics, kept for backward. */
struct meg_norm_stats {
    float *mean, *rstd; /* [n]; mean not used by RMS norm */
};

/* Where a branch joins the residual: the bias its last linear left out, and its dropout. */
struct meg_residual_epilogue {
    void *bias; /* [h], or NULL */
    void *dbias;
    struct meg_drop drop;
};

void meg_norm_fwd(struct meg_ctx *c, struct meg_mat y, struct meg_mat x, struct meg_norm_stats *a,
                  const struct meg_norm_weights *l);
/* dx = skip + gradient through the norm; skip may be dx, or have p NULL. */
void meg_norm_bwd(struct meg_ctx *c, struct meg_mat dx, struct meg_mat skip, struct meg_mat dy, struct meg_mat x,
                  const struct meg_norm_stats *a, const struct meg_norm_weights *l);

void meg_add_fwd(struct meg_ctx *c, struct meg_mat z, struct meg_mat x, struct meg_mat branch,
                 const struct meg_residual_epilogue *j);
void meg_add_bwd(struct meg_ctx *c, struct meg_mat dbranch, struct meg_mat dz, const struct meg_residual_epilogue *j);

void meg_add_norm_fwd(struct meg_ctx *c, struct meg_mat z, struct meg_mat y, struct meg_mat x, struct meg_mat branch,
                      const struct meg_residual_epilogue *j, struct meg_norm_stats *a,
                      const struct meg_norm_weights *l);

MEG_END_DECLS
#endif
