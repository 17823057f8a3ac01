/* norm.c - norms and residual additions, each by one operation of the backend. */
#include "nn/norm.h"

void meg_bind_norm(struct meg_binder *b, struct meg_norm_weights *l, const char *name, int64_t h)
{
    if (l->has_weight)
        meg_bind_vector(b, &l->w, &l->dw, meg_param_name(name, ".weight").s, h, meg_norm_is_1p(l->type) ? 0 : 1);
    if (l->has_bias)
        meg_bind_vector(b, &l->b, &l->db, meg_param_name(name, ".bias").s, h, 0);
}

void meg_norm_fwd(struct meg_ctx *c, struct meg_mat y, struct meg_mat x, struct meg_norm_stats *a,
                  const struct meg_norm_weights *l)
{
    MEG_CALL(c->op, c->stream, norm_fwd, .type = l->type, .y = y, .mean = a->mean, .rstd = a->rstd, .x = x, .w = l->w,
             .b = l->b, .eps = l->eps);
}

void meg_norm_bwd(struct meg_ctx *c, struct meg_mat dx, struct meg_mat skip, struct meg_mat dy, struct meg_mat x,
                  const struct meg_norm_stats *a, const struct meg_norm_weights *l)
{
    MEG_CALL(c->op, c->stream, norm_bwd, .type = l->type, .dx = dx, .dw = l->dw, .db = l->db, .grad = c->grad_dtype,
             .skip = skip, .dy = dy, .x = x, .w = l->w, .mean = a->mean, .rstd = a->rstd,
             .accumulate = c->call.accumulates_grads);
}

void meg_add_fwd(struct meg_ctx *c, struct meg_mat z, struct meg_mat x, struct meg_mat sublayer_out,
                 const struct meg_residual_epilogue *r)
{
    MEG_CALL(c->op, c->stream, add_fwd, .z = z, .x = x, .y = sublayer_out, .bias = r->bias.w, .drop = &r->drop);
}

struct meg_mat meg_add_bwd(struct meg_ctx *c, struct meg_mat d_sublayer_out, struct meg_mat dz,
                           const struct meg_residual_epilogue *r)
{
    const bool is_dz = r->drop.p == 0 && dz.dtype == d_sublayer_out.dtype && !c->defers_wgrad;
    const struct meg_mat dy = is_dz ? dz : d_sublayer_out;

    if (!is_dz || r->bias.dw)
        MEG_CALL(c->op, c->stream, add_bwd, .dy = dy, .dbias = r->bias.dw, .grad = c->grad_dtype, .dz = dz,
                 .drop = &r->drop, .accumulate = c->call.accumulates_grads);
    return dy;
}
