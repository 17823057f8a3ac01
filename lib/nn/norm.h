/*
 * norm.h - LayerNorm and RMSNorm, and the residual addition before a norm:
 * z = x + drop(sublayer_out + bias), y = norm(z).
 */
#pragma once
#include "nn/ctx.h"
#include "params/binder.h"

struct meg_norm_weights {
    enum meg_norm type;
    bool has_weight, has_bias; /* an RMSNorm has no bias */
    void *w, *b;               /* [h], or NULL */
    void *dw, *db;             /* NULL also if the norm is frozen */
    float eps;
};

/* Declare the weight and the bias of a norm of width h.  The caller sets the type, has_weight, has_bias and eps. */
void meg_bind_norm(struct meg_binder *b, struct meg_norm_weights *l, const char *name, int64_t h);

/* Row statistics, kept for backward. */
struct meg_norm_stats {
    float *mean, *rstd; /* [n]; RMSNorm does not use mean */
};

/* The bias of the output of a sublayer and its gradient, [h] or NULL. */
struct meg_residual_bias {
    void *w, *dw;
};

/*
 * Parameters of Megatron's bias-dropout-add, which adds the output of a sublayer to the residual stream.  This addition
 * includes the bias of the sublayer, which does not add the bias itself.
 */
struct meg_residual_epilogue {
    struct meg_residual_bias bias;
    struct meg_drop drop;
};

/* Compute y = norm(x) and the statistics of x.  x and y are rows of the residual stream. */
void meg_norm_fwd(struct meg_ctx *c, struct meg_mat y, struct meg_mat x, struct meg_norm_stats *a,
                  const struct meg_norm_weights *l);
/*
 * Compute dx = skip + the gradient of x, and the gradients of w and b unless they are frozen, given dy, the gradient of
 * y.  `skip` may be dx.  If skip.p is NULL, dx is only the gradient of x.
 */
void meg_norm_bwd(struct meg_ctx *c, struct meg_mat dx, struct meg_mat skip, struct meg_mat dy, struct meg_mat x,
                  const struct meg_norm_stats *a, const struct meg_norm_weights *l);

/* Compute z = x + drop(sublayer_out + bias). */
void meg_add_fwd(struct meg_ctx *c, struct meg_mat z, struct meg_mat x, struct meg_mat sublayer_out,
                 const struct meg_residual_epilogue *r);
/*
 * Return the gradient of sublayer_out, given dz, and compute the gradient of the bias.  The returned matrix is dz if
 * the gradient equals dz, because there is no dropout and the types are the same.  Otherwise, or if *_bwd_weight will
 * read the gradient later (c->defers_wgrad), it is written to d_sublayer_out, which is returned.
 */
struct meg_mat meg_add_bwd(struct meg_ctx *c, struct meg_mat d_sublayer_out, struct meg_mat dz,
                           const struct meg_residual_epilogue *r);
