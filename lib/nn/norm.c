/* norm.c - norms and residual additions, each by one operation of the backend. */
#include "nn/norm.h"

void meg_bind_norm(struct meg_binder *b, struct meg_norm_weights *l, const char *name, int64_t h)
{
    meg_bind_vector(b, &l->w, &l->dw, meg_param_name(name, ".weight").s, h, MEG_INIT_ONE);
    if (!meg_norm_is_rms(l->type))
        meg_bind_vector(b, &l->b, &l->db, meg_param_name(name, ".bias").s, h, MEG_INIT_ZERO);
}

void meg_norm_fwd(struct meg_ctx *c, struct meg_mat y, struct meg_mat x, struct meg_norm_stats *a,
                  const struct meg_norm_weights *l)
{
    c->op->norm_fwd(c->stream, l->type, y, a->mean, a->rstd, x, l->w, l->b, l->eps);
}

void meg_norm_bwd(struct meg_ctx *c, struct meg_mat dx, struct meg_mat skip, struct meg_mat dy, struct meg_mat x,
                  const struct meg_norm_stats *a, const struct meg_norm_weights *l)
{
    c->op->norm_bwd(c->stream, l->type, dx, l->dw, l->db, c->grad_dtype, skip, dy, x, l->w, a->mean, a->rstd,
                    c->accumulates_grads);
}

void meg_add_fwd(struct meg_ctx *c, struct meg_mat z, struct meg_mat x, struct meg_mat sublayer_out,
                 const struct meg_residual_epilogue *r)
{
    c->op->add_fwd(c->stream, z, x, sublayer_out, r->bias, &r->drop);
}

struct meg_mat meg_add_bwd(struct meg_ctx *c, struct meg_mat d_sublayer_out, struct meg_mat dz,
                           const struct meg_residual_epilogue *r)
{
    const bool is_dz = r->drop.p == 0 && dz.dtype == d_sublayer_out.dtype && !c->defers_wgrad;
    const struct meg_mat dy = is_dz ? dz : d_sublayer_out;

    if (!is_dz || r->dbias)
        c->op->add_bwd(c->stream, dy, r->dbias, c->grad_dtype, dz, &r->drop, c->accumulates_grads);
    return dy;
}

void meg_add_norm_fwd(struct meg_ctx *c, struct meg_mat z, struct meg_mat y, struct meg_mat x,
                      struct meg_mat sublayer_out, const struct meg_residual_epilogue *r, struct meg_norm_stats *a,
                      const struct meg_norm_weights *l)
{
    c->op->add_norm_fwd(c->stream, l->type, z, y, a->mean, a->rstd, x, sublayer_out, r->bias, &r->drop, l->w, l->b,
                        l->eps);
}
