/* linear.c - linear layers: parameters, products, and communication. */
#include "nn/linear.h"
#include <inttypes.h>
#include "nn/sequence_parallel.h"

static void create_plan(struct meg_binder *b, struct meg_linear *l, const char *weight, enum meg_dtype out)
{
    const struct meg_param *row = meg_bind_row(b, weight);
    const int64_t *shard = &row->shard_dim[row->ndim - 2];
    const enum meg_dtype dtype = meg_param_dtype(row, b->dtype);
    const struct meg_linear_desc desc = { b->n,         shard[1], shard[0], dtype, dtype, meg_param_dtype(row, out),
                                          b->grad_dtype };
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
    const struct meg_matrix_shape matrix = { experts, s->out, s->in, s->tp_dim, s->nparts, s->std, s->parts };
    struct meg_param *row = meg_bind_matrix(b, &l->w, &l->dw, weight, &matrix);

    if (!row)
        return NULL;
    row->is_frozen = s->is_frozen;
    row->is_f32 = s->is_f32;
    return row;
}

static void bind_bias(struct meg_binder *b, struct meg_linear *l, const char *bias, const struct meg_linear_shape *s)
{
    struct meg_param *row = meg_bind_vector(b, &l->bias, &l->dbias, bias, s->out, 0);

    if (!row)
        return;
    if (s->tp_dim == 0)
        row->sharding[0] = s->parts ? *s->parts : meg_equal_parts(s->out, s->nparts, MEG_AXIS_TP);
    row->is_vocab = s->is_output;
    row->is_frozen = s->is_frozen;
    row->is_f32 = s->is_f32;
}

static void dense_bind(struct meg_binder *b, struct meg_linear *l, const char *name, const struct meg_linear_shape *s)
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
    if (b->step != MEG_BIND_POINTERS)
        return;
    l->is_frozen = !l->dw.p;
    MEG_ASSERT(!l->is_frozen || !l->dbias);
}

void meg_bind_experts(struct meg_binder *b, struct meg_linear *l, const char *name, int64_t experts,
                      const struct meg_linear_shape *s)
{
    const struct meg_param_name weight = meg_param_name(name, ".weight");

    MEG_ASSERT(!s->variant && !s->tied && !s->has_bias);
    l->type = &meg_linear_dense;
    l->tp_dim = s->tp_dim;
    bind_weight(b, l, weight.s, experts, s);
    l->is_frozen = !l->dw.p;
    bind_plan(b, l, weight.s, b->dtype);
}

static void dense_fwd(struct meg_ctx *c, const struct meg_linear *l, const struct meg_linear_call *a)
{
    MEG_CALL(c->op, c->stream, linear_fwd, .plan = l->plan, .y = a->y, .pre = a->pre, .x = a->x, .w = l->w,
             .bias = l->tp_dim == 1 ? NULL : l->bias, .act = a->act, .accumulate = a->accumulate);
}

static void dense_bwd_data(struct meg_ctx *c, const struct meg_linear *l, const struct meg_linear_call *a)
{
    MEG_CALL(c->op, c->stream, linear_bwd_data, .plan = l->plan, .dx = a->dx, .dy = a->dy, .w = l->w, .pre = a->pre,
             .act = a->act, .accumulate = a->accumulate);
}

static void dense_bwd_weight(struct meg_ctx *c, const struct meg_linear *l, const struct meg_linear_call *a)
{
    if (!l->is_frozen)
        MEG_CALL(c->op, c->stream, linear_bwd_weight, .plan = l->plan, .dw = l->dw,
                 .dbias = l->tp_dim == 1 ? NULL : l->dbias, .dy = a->dy, .x = a->x,
                 .accumulate = c->call.accumulates_grads);
}

const struct meg_linear_type meg_linear_dense = { dense_bind, dense_fwd, dense_bwd_data, dense_bwd_weight };

void meg_bind_linear(struct meg_binder *b, struct meg_linear *l, const char *name, const struct meg_linear_shape *s)
{
    l->type = s->variant ? s->variant->type : &meg_linear_dense;
    l->tp_dim = s->tp_dim;
    l->type->bind(b, l, name, s);
}

void meg_linear_local_fwd(struct meg_ctx *c, const struct meg_linear *l, const struct meg_linear_call *a)
{
    l->type->fwd(c, l, a);
}

void meg_linear_local_bwd(struct meg_ctx *c, const struct meg_linear *l, const struct meg_linear_call *a)
{
    l->type->bwd_data(c, l, a);
    l->type->bwd_weight(c, l, a);
}

void meg_linear_fwd(struct meg_ctx *c, const struct meg_linear *l, const struct meg_linear_call *a)
{
    struct meg_linear_call local = *a;

    if (l->tp_dim == 0)
        local.x = meg_sp_gather(c, a->x);
    if (l->tp_dim == 1)
        local.y = meg_sp_partial_sum(c, a->y);
    meg_linear_local_fwd(c, l, &local);
    if (l->tp_dim == 1)
        meg_sp_reduce(c, a->y, local.y);
}

void meg_linear_bwd_weight(struct meg_ctx *c, const struct meg_linear *l, const struct meg_linear_call *a)
{
    struct meg_linear_call local = *a;

    if (l->is_frozen)
        return;
    if (l->tp_dim == 0)
        local.x = meg_sp_gather(c, a->x);
    if (l->tp_dim == 1)
        local.dy = meg_sp_gather(c, a->dy);
    l->type->bwd_weight(c, l, &local);
}

void meg_linear_bwd(struct meg_ctx *c, const struct meg_linear *l, const struct meg_linear_call *a)
{
    const bool has_wgrad = !c->defers_wgrad && !l->is_frozen;
    struct meg_linear_call local = *a;

    if (l->tp_dim == 1)
        local.dy = meg_sp_gather(c, a->dy);
    if (l->tp_dim == 0)
        local.dx = meg_sp_partial_sum(c, a->dx);
    if (l->tp_dim == 0 && has_wgrad)
        local.x = meg_sp_gather(c, a->x);
    l->type->bwd_data(c, l, &local);
    if (has_wgrad)
        l->type->bwd_weight(c, l, &local);
    if (l->tp_dim == 0)
        meg_sp_reduce(c, a->dx, local.dx);
}
