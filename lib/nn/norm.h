/* A norm, alone and behind a residual: z = x + drop(branch + bias), y = norm(z). */
#ifndef MEG_NN_NORM_H
#define MEG_NN_NORM_H
#include "nn/ctx.h"

MEG_BEGIN_DECLS

struct meg_lnorm {
    enum meg_norm kind;
    void *w, *b;                 /* [h]; b NULL for RMS norm */
    void *dw, *db;
    float eps;
};

/* Row statistics, kept for backward. */
struct meg_lnorm_acts {
    float *mean, *rstd;          /* [n]; mean not used by RMS norm */
};

/* Where a branch joins the residual: the bias its last linear left out, and its dropout. */
struct meg_join {
    void *bias;                  /* [h], or NULL */
    void *dbias;
    struct meg_drop drop;
};

void meg_norm_fwd(struct meg_ctx *c, struct meg_mat y, struct meg_mat x, struct meg_lnorm_acts *a,
                  const struct meg_lnorm *l);
/* dx = skip + gradient through the norm; skip may be dx, or have p NULL. */
void meg_norm_bwd(struct meg_ctx *c, struct meg_mat dx, struct meg_mat skip, struct meg_mat dy, struct meg_mat x,
                  const struct meg_lnorm_acts *a, const struct meg_lnorm *l);

void meg_add_fwd(struct meg_ctx *c, struct meg_mat z, struct meg_mat x, struct meg_mat branch, const struct meg_join *j);
void meg_add_bwd(struct meg_ctx *c, struct meg_mat dbranch, struct meg_mat dz, const struct meg_join *j);

void meg_add_norm_fwd(struct meg_ctx *c, struct meg_mat z, struct meg_mat y, struct meg_mat x, struct meg_mat branch,
                      const struct meg_join *j, struct meg_lnorm_acts *a, const struct meg_lnorm *l);

MEG_END_DECLS
#endif
