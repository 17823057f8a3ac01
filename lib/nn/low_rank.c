/* low_rank.c - linear layers with a low-rank adapter, as three dense products. */
#include "nn/low_rank.h"
#include <math.h>
#include <stdlib.h>
#include "base/mem.h"

struct low_rank {
    struct meg_linear in, out; /* the factors a and b */
    float scale;
};

/* Declare the factors in the variables of `own`. */
static void bind_factors(struct meg_binder *b, struct low_rank *own, const char *name, const struct meg_linear_shape *s)
{
    const struct meg_param_name in_name = meg_param_name(name, ".adapter.linear_in");
    const struct meg_param_name out_name = meg_param_name(name, ".adapter.linear_out");
    const int64_t r = s->variant->kept;
    struct meg_linear_shape in = { .out = r, .in = s->in, .tp_dim = -1, .nparts = 1, .is_frozen = s->is_frozen },
                            out = in;

    in.std = 1 / sqrt(3 * (double)s->in); /* of the uniform distribution that PEFT initializes a with */
    out.out = s->out;
    out.in = r;
    if (s->tp_dim >= 0) {
        struct meg_linear_shape *sharded = s->tp_dim == 0 ? &out : &in;

        sharded->tp_dim = s->tp_dim;
        sharded->nparts = s->nparts;
        sharded->parts = s->parts;
    }
    meg_bind_linear(b, &own->in, in_name.s, &in);
    meg_bind_linear(b, &own->out, out_name.s, &out);
}

/* Set the last two rows of the parameter table, the factors. */
static void set_rows(struct meg_params *p, int tp_dim)
{
    struct meg_param *in = &p->row[p->n - 2], *out = &p->row[p->n - 1];

    out->init = (struct meg_init){ meg_init_constant, .a = 0 };
    in->grad_is_partial_over_tp = tp_dim == 0;
    out->grad_is_partial_over_tp = tp_dim == 1;
}

static void bind(struct meg_binder *b, struct meg_linear *l, const char *name, const struct meg_linear_shape *s)
{
    struct low_rank rows = { 0 }; /* MEG_BIND_ROWS may have temporary weights */
    struct meg_linear_shape base = *s;

    MEG_ASSERT(!s->tied && !s->is_f32 && !s->is_output);
    if (b->step == MEG_BIND_PLANS) {
        struct low_rank *own = l->own = meg_new(sizeof *own);

        own->scale = ((const struct meg_low_rank *)s->variant)->scale;
    }
    base.is_frozen = true;
    meg_linear_dense.bind(b, l, name, &base);
    bind_factors(b, b->step == MEG_BIND_ROWS ? &rows : l->own, name, s);
    if (b->step == MEG_BIND_ROWS)
        set_rows(b->params, s->tp_dim);
    if (b->step == MEG_BIND_POINTERS)
        l->is_frozen = ((struct low_rank *)l->own)->in.is_frozen && ((struct low_rank *)l->own)->out.is_frozen;
    if (b->step == MEG_BIND_DESTROY)
        free(l->own);
}

static void scale(struct meg_ctx *c, struct meg_mat m, float factor)
{
    MEG_CALL(c->op, c->stream, scale, .y = m, .x = m, .factor = factor);
}

/* Compute kept = scale x a^T, then y = kept b^T, to which the product with w is added. */
static void fwd(struct meg_ctx *c, const struct meg_linear *l, const struct meg_linear_call *a)
{
    const struct low_rank *own = l->own;
    const struct meg_mat kept = meg_mat_rows(a->kept, 0, a->x.rows);
    const bool has_pre = a->act != MEG_ACT_NONE && a->pre.p;
    struct meg_linear_call base = *a;

    meg_linear_dense.fwd(c, &own->in, &(struct meg_linear_call){ .y = kept, .x = a->x });
    scale(c, kept, own->scale);
    meg_linear_dense.fwd(c, &own->out, &(struct meg_linear_call){ .y = has_pre ? a->pre : a->y, .x = kept });
    base.accumulate = true;
    meg_linear_dense.fwd(c, l, &base);
}

/* Compute d_kept = scale dy b, then dx = d_kept a, to which the product with w is added. */
static void bwd_data(struct meg_ctx *c, const struct meg_linear *l, const struct meg_linear_call *a)
{
    const struct low_rank *own = l->own;
    const struct meg_mat d_kept = meg_mat_rows(a->d_kept, 0, a->dy.rows);
    struct meg_linear_call base = *a;

    meg_linear_dense.bwd_data(c, &own->out, &(struct meg_linear_call){ .dx = d_kept, .dy = a->dy });
    scale(c, d_kept, own->scale);
    meg_linear_dense.bwd_data(c, &own->in, &(struct meg_linear_call){ .dx = a->dx, .dy = d_kept });
    base.accumulate = true;
    meg_linear_dense.bwd_data(c, l, &base);
}

static void bwd_weight(struct meg_ctx *c, const struct meg_linear *l, const struct meg_linear_call *a)
{
    const struct low_rank *own = l->own;
    struct meg_linear_call in = *a, out = *a;

    in.dy = meg_mat_rows(a->d_kept, 0, a->dy.rows);
    out.x = meg_mat_rows(a->kept, 0, a->x.rows);
    meg_linear_dense.bwd_weight(c, &own->in, &in);
    meg_linear_dense.bwd_weight(c, &own->out, &out);
}

static const struct meg_linear_type low_rank = { bind, fwd, bwd_data, bwd_weight };

struct meg_low_rank meg_low_rank(int64_t r, double alpha)
{
    return (struct meg_low_rank){ { &low_rank, r }, (float)(alpha / (double)r) };
}
