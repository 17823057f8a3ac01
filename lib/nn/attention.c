#include "nn/attention.h"
#include <math.h>

/* The query, key (part r) or value (part r+1) heads inside packed rows of b sequences, from column part*d on. */
static struct meg_heads packed(struct meg_mat m, int64_t b, const struct meg_attn *l, int64_t part)
{
    struct meg_heads h = { 0 };
    h.p = (char *)m.p + (size_t)(part * l->d) * meg_dtype_size(m.dtype);
    h.dtype = m.dtype;
    h.ld_s = b * m.ld;
    h.ld_b = m.ld;
    h.ld_g = (l->a / l->g + 2) * l->d;
    h.ld_h = l->d;
    return h;
}

/* Heads side by side, as attention's output has them. */
static struct meg_heads plain(struct meg_mat m, int64_t b, const struct meg_attn *l)
{
    struct meg_heads h = packed(m, b, l, 0);
    h.ld_g = l->a / l->g * l->d;
    return h;
}

static struct meg_attn_geom geometry(const struct meg_ctx *c, const struct meg_attn *l)
{
    struct meg_attn_geom g = { 0 };
    g.s_q = g.s_k = c->s;
    g.b = c->b;
    g.a = l->a;
    g.g = l->g;
    g.d = l->d;
    g.s = c->s;
    g.is_causal = 1;
    g.scale = 1 / sqrtf((float)l->d);
    g.doc_start = c->doc_start;
    return g;
}

static struct meg_drop dropout(const struct meg_ctx *c, const struct meg_attn *l)
{
    struct meg_drop d = meg_ctx_drop(c, l->dropout, l->layer, MEG_DROP_ATTN);
    d.unit0 = l->head0;
    return d;
}

/* Turn the query and key heads of packed rows by their positions; sign -1: back. */
static void rotate(struct meg_ctx *c, struct meg_mat qkv, float sign, const struct meg_attn *l)
{
    const struct meg_rope *t = l->rope;

    if (t->half)
        c->op->rope(c->st, packed(qkv, c->b, l, 0), qkv.rows / c->b, c->b, l->g, l->a / l->g + 1, t->half,
                    t->is_interleaved, t->cos, t->sin, c->position, sign);
}

/* Append the rows' keys and values to their sequence in the cache, and attend to all of it. */
static void attend_cached(struct meg_ctx *c, struct meg_attn_acts *a, const struct meg_kv *kv, const struct meg_attn *l)
{
    const int64_t r = l->a / l->g, ld = 2 * l->g * l->d;
    const size_t size = meg_dtype_size(c->dtype);
    const struct meg_mat qkv = meg_mat_rows(a->qkv, kv->row, kv->rows), o = meg_mat_rows(a->o, kv->row, kv->rows);
    const struct meg_drop none = { 0 };
    const struct meg_heads k = { kv->p + (size_t)l->layer * kv->layer_bytes, c->dtype, ld, 0, 2 * l->d, 0 };
    struct meg_heads v = k, k_new = k, v_new;
    struct meg_attn_geom geom = geometry(c, l);

    v.p = (char *)k.p + (size_t)l->d * size;
    k_new.p = (char *)k.p + (size_t)(kv->first * ld) * size;
    v_new = k_new;
    v_new.p = (char *)k_new.p + (size_t)l->d * size;
    c->op->copy_heads(c->st, k_new, packed(qkv, 1, l, r), kv->rows, 1, l->g, l->d);
    c->op->copy_heads(c->st, v_new, packed(qkv, 1, l, r + 1), kv->rows, 1, l->g, l->d);

    geom.b = 1;
    geom.s_q = kv->rows;
    geom.s_k = geom.s = kv->first + kv->rows;
    geom.q0 = kv->first;
    c->op->attn_fwd(c->st, &geom, plain(o, 1, l), a->lse, packed(qkv, 1, l, 0), k, v, &none);
}

/* The heads' output, and its log-sum-exp, from qkv as positions have turned it. */
static void attend(struct meg_ctx *c, const struct meg_attn_acts *a, const struct meg_attn *l)
{
    const struct meg_attn_geom geom = geometry(c, l);
    const struct meg_drop drop = dropout(c, l);
    const int64_t r = l->a / l->g;

    c->op->attn_fwd(c->st, &geom, plain(a->o, c->b, l), a->lse, packed(a->qkv, c->b, l, 0), packed(a->qkv, c->b, l, r),
                    packed(a->qkv, c->b, l, r + 1), &drop);
}

void meg_attn_fwd(struct meg_ctx *c, struct meg_mat y, struct meg_mat x, struct meg_attn_acts *a,
                  const struct meg_attn *l)
{
    const struct meg_mat none = { 0 };

    meg_col_fwd(c, a->qkv, none, x, &l->qkv, MEG_ACT_NONE);
    rotate(c, a->qkv, 1, l);
    if (c->kv)
        for (int64_t i = 0; i < c->nkv; i++)
            attend_cached(c, a, &c->kv[i], l);
    else
        attend(c, a, l);
    meg_row_fwd(c, y, a->o, &l->proj);
}

void meg_attn_bwd(struct meg_ctx *c, struct meg_mat dx, struct meg_mat dy, struct meg_mat x,
                  const struct meg_attn_acts *a, struct meg_attn_grads *d, const struct meg_attn *l)
{
    const struct meg_attn_geom geom = geometry(c, l);
    const struct meg_drop drop = dropout(c, l);
    const int64_t r = l->a / l->g;
    const struct meg_mat none = { 0 };

    if (l->recomputes)
        attend(c, a, l);
    meg_row_bwd(c, d->o, dy, a->o, &l->proj, none, MEG_ACT_NONE);
    c->op->attn_delta(c->st, &geom, d->delta, plain(d->o, c->b, l), plain(a->o, c->b, l));
    c->op->attn_bwd(c->st, &geom, packed(d->qkv, c->b, l, 0), packed(d->qkv, c->b, l, r),
                    packed(d->qkv, c->b, l, r + 1), plain(d->o, c->b, l), a->lse, d->delta, packed(a->qkv, c->b, l, 0),
                    packed(a->qkv, c->b, l, r), packed(a->qkv, c->b, l, r + 1), &drop, 0);
    rotate(c, d->qkv, -1, l);
    meg_col_bwd(c, dx, d->qkv, x, &l->qkv);
}

void meg_attn_bwd_weight(struct meg_ctx *c, struct meg_mat dy, struct meg_mat x, const struct meg_attn_acts *a,
                         const struct meg_attn_grads *d, const struct meg_attn *l)
{
    meg_row_bwd_weight(c, dy, a->o, &l->proj);
    meg_col_bwd_weight(c, d->qkv, x, &l->qkv);
}
