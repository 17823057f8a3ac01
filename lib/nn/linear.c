/* linear.c - column-parallel and row-parallel linear layers. */
#include "nn/linear.h"
#include <inttypes.h>
#include "nn/sequence_parallel.h"

static void create_plan(struct meg_binder *b, struct meg_linear *l, const char *weight, enum meg_dtype out)
{
    const struct meg_param *row = meg_bind_row(b, weight);
    const int64_t *shard = &row->shard_dim[row->ndim - 2];
    const struct meg_linear_desc desc = { b->n, shard[1], shard[0], b->dtype, b->dtype, out, b->grad_dtype };
    const char *why;

    if (b->status < 0 || (l->plan = b->op->linear_create(&desc, &why)))
        return;
    b->status =
        meg_fail(b->err, MEG_EUSAGE, "%s backend: %s [%" PRId64 ",%" PRId64 "] in %s with gradients in %s: %s",
                 b->op->name, row->name, desc.out, desc.in, meg_dtype_name(desc.w), meg_dtype_name(desc.dw), why);
}

/* Create or destroy the plan of a linear layer, whose output has the dtype `out`. */
static void bind_plan(struct meg_binder *b, struct meg_linear *l, const char *weight, enum meg_dtype out)
{
    if (b->step == MEG_BIND_PLANS)
        create_plan(b, l, weight, out);
    if (b->step == MEG_BIND_DESTROY && l->plan)
        b->op->linear_destroy(l->plan);
}

/* Declare the weight of a linear layer or, unless experts is 0, of the linear layers of all experts. */
static struct meg_param *bind_weight(struct meg_binder *b, struct meg_linear *l, const char *weight, int64_t experts,
                                     const struct meg_linear_shape *s)
{
    const struct meg_matrix_shape matrix = { experts, s->out, s->in, s->tp_dim, s->nblocks, s->std };

    return meg_bind_matrix(b, &l->w, &l->dw, weight, &matrix);
}

static void bind_bias(struct meg_binder *b, struct meg_linear *l, const char *bias, const struct meg_linear_shape *s)
{
    struct meg_param *row = meg_bind_vector(b, &l->bias, &l->dbias, bias, s->out, MEG_INIT_ZERO);

    if (!row)
        return;
    if (s->tp_dim == 0)
        row->sharding[0] = (struct meg_sharding){ MEG_AXIS_TP, s->nblocks };
    row->is_vocab = s->is_output;
}

void meg_bind_linear(struct meg_binder *b, struct meg_linear *l, const char *name, const struct meg_linear_shape *s)
{
    const struct meg_param_name weight = meg_param_name(s->tied ? s->tied : name, s->tied ? "" : ".weight");

    if (s->tied) {
        meg_bind_tied_matrix(b, &l->w, &l->dw, weight.s);
    } else {
        struct meg_param *row = bind_weight(b, l, weight.s, 0, s);

        if (row)
            row->is_vocab = row->is_decoupled = s->is_output;
    }
    bind_plan(b, l, weight.s, s->is_output ? b->logits_dtype : b->dtype);
    if (s->has_bias)
        bind_bias(b, l, meg_param_name(name, ".bias").s, s);
}

void meg_bind_experts(struct meg_binder *b, struct meg_linear *l, const char *name, int64_t experts,
                      const struct meg_linear_shape *s)
{
    const struct meg_param_name weight = meg_param_name(name, ".weight");

    bind_weight(b, l, weight.s, experts, s);
    bind_plan(b, l, weight.s, b->dtype);
}

void meg_column_parallel_fwd(struct meg_ctx *c, struct meg_mat y, struct meg_mat pre, struct meg_mat x,
                             const struct meg_linear *l, enum meg_act act)
{
    MEG_CALL(c->op, c->stream, linear_fwd, .plan = l->plan, .y = y, .pre = pre, .x = meg_sp_gather(c, x), .w = l->w,
             .bias = l->bias, .act = act);
}

void meg_column_parallel_bwd_weight(struct meg_ctx *c, struct meg_mat dy, struct meg_mat x, const struct meg_linear *l)
{
    MEG_CALL(c->op, c->stream, linear_bwd_weight, .plan = l->plan, .dw = l->dw, .dbias = l->dbias, .dy = dy,
             .x = meg_sp_gather(c, x), .accumulate = c->accumulates_grads);
}

void meg_column_parallel_bwd(struct meg_ctx *c, struct meg_mat dx, struct meg_mat dy, struct meg_mat x,
                             const struct meg_linear *l)
{
    const struct meg_mat partial = meg_sp_partial_sum(c, dx);

    if (!c->defers_wgrad)
        meg_column_parallel_bwd_weight(c, dy, x, l);
    MEG_CALL(c->op, c->stream, linear_bwd_data, .plan = l->plan, .dx = partial, .dy = dy, .w = l->w);
    meg_sp_reduce(c, dx, partial);
}

void meg_row_parallel_fwd(struct meg_ctx *c, struct meg_mat y, struct meg_mat x, const struct meg_linear *l)
{
    const struct meg_mat partial = meg_sp_partial_sum(c, y);

    MEG_CALL(c->op, c->stream, linear_fwd, .plan = l->plan, .y = partial, .x = x, .w = l->w);
    meg_sp_reduce(c, y, partial);
}

void meg_row_parallel_bwd(struct meg_ctx *c, struct meg_mat dx, struct meg_mat dy, struct meg_mat x,
                          const struct meg_linear *l, struct meg_mat pre, enum meg_act act)
{
    const struct meg_mat all = meg_sp_gather(c, dy);

    if (!c->defers_wgrad)
        MEG_CALL(c->op, c->stream, linear_bwd_weight, .plan = l->plan, .dw = l->dw, .dy = all, .x = x,
                 .accumulate = c->accumulates_grads);
    MEG_CALL(c->op, c->stream, linear_bwd_data, .plan = l->plan, .dx = dx, .dy = all, .w = l->w, .pre = pre,
             .act = act);
}

void meg_row_parallel_bwd_weight(struct meg_ctx *c, struct meg_mat dy, struct meg_mat x, const struct meg_linear *l)
{
    MEG_CALL(c->op, c->stream, linear_bwd_weight, .plan = l->plan, .dw = l->dw, .dy = meg_sp_gather(c, dy), .x = x,
             .accumulate = c->accumulates_grads);
}
