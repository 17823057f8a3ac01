#include "nn/internal.h"
#include <math.h>

static struct meg_heads packed(struct meg_mat m, int64_t b, const struct meg_attn *l, int64_t part)
{
    return nn_qkv_heads(m, b, l->a / l->g, l->d, part);
}

/* Turn the query and key heads of packed rows by their positions; sign -1: back. */
static void rotate(struct meg_ctx *c, struct meg_mat qkv, float sign, const struct meg_attn *l)
{
    const struct meg_rope *t = l->rope;

    if (t->half)
        c->op->rope(c->stream, packed(qkv, c->b, l, 0), qkv.rows / c->b, c->b, l->g, l->a / l->g + 1, t->half,
                    t->is_interleaved, t->cos, t->sin, c->position_ids, sign);
}

/* Append the rows' keys and values to their sequence in the cache, and attend to all of it. */
static void attend_cached(struct meg_ctx *c, struct meg_attn_acts *a, const struct meg_kv_cache_seq *kv,
                          const struct meg_attn *l)
{
    const int64_t r = l->a / l->g, ld = 2 * l->g * l->d;
    const size_t size = meg_dtype_size(c->dtype);
    const struct meg_mat qkv = meg_mat_rows(a->qkv, kv->row0, kv->rows), o = meg_mat_rows(a->o, kv->row0, kv->rows);
    const struct meg_drop none = { 0 };
    const struct meg_heads k = { kv->cache + (size_t)l->layer * kv->layer_bytes, c->dtype, ld, 0, 2 * l->d, 0 };
    struct meg_heads v = k, k_new = k, v_new;
    struct meg_heads to = packed(o, 1, l, 0);
    struct meg_attn_geom geom = { 0 };

    v.p = (char *)k.p + (size_t)l->d * size;
    k_new.p = (char *)k.p + (size_t)(kv->position0 * ld) * size;
    v_new = k_new;
    v_new.p = (char *)k_new.p + (size_t)l->d * size;
    c->op->copy_heads(c->stream, k_new, packed(qkv, 1, l, r), kv->rows, 1, l->g, l->d);
    c->op->copy_heads(c->stream, v_new, packed(qkv, 1, l, r + 1), kv->rows, 1, l->g, l->d);

    geom.s_q = kv->rows;
    geom.s_k = geom.s = kv->position0 + kv->rows;
    geom.b = 1;
    geom.a = l->a;
    geom.g = l->g;
    geom.d = l->d;
    geom.q0 = kv->position0;
    geom.is_causal = 1;
    geom.scale = 1 / sqrtf((float)l->d);
    to.ld_g = r * l->d;
    c->op->attn_fwd(c->stream, &geom, to, a->lse, packed(qkv, 1, l, 0), k, v, &none);
}

void meg_attn_fwd(struct meg_ctx *c, struct meg_mat y, struct meg_mat x, struct meg_attn_acts *a,
                  const struct meg_attn *l)
{
    const struct meg_mat none = { 0 }, rows = nn_a2a_buffer(l, a->qkv);

    meg_column_parallel_fwd(c, rows, none, x, &l->qkv, MEG_ACT_NONE);
    rotate(c, rows, 1, l);
    nn_a2a_seq_to_heads(c, l, a->qkv.p, rows);
    if (c->kv)
        for (int64_t i = 0; i < c->nkv; i++)
            attend_cached(c, a, &c->kv[i], l);
    else
        nn_cp_attn_fwd(c, l, a->o, a->lse, a->qkv);
    meg_row_parallel_fwd(c, y, a->o, &l->proj);
}

void meg_attn_bwd(struct meg_ctx *c, struct meg_mat dx, struct meg_mat dy, struct meg_mat x,
                  const struct meg_attn_acts *a, struct meg_attn_grads *d, const struct meg_attn *l)
{
    const struct meg_mat none = { 0 };

    if (l->recomputes_core)
        nn_cp_attn_fwd(c, l, a->o, a->lse, a->qkv);
    meg_row_parallel_bwd(c, d->o, dy, a->o, &l->proj, none, MEG_ACT_NONE);
    nn_cp_attn_bwd(c, l, d->qkv, d->o, d->delta, a->o, a->lse, a->qkv);
    rotate(c, d->qkv, -1, l);
    meg_column_parallel_bwd(c, dx, d->qkv, x, &l->qkv);
}

void meg_attn_bwd_weight(struct meg_ctx *c, struct meg_mat dy, struct meg_mat x, const struct meg_attn_acts *a,
                         const struct meg_attn_grads *d, const struct meg_attn *l)
{
    meg_row_parallel_bwd_weight(c, dy, a->o, &l->proj);
    meg_column_parallel_bwd_weight(c, d->qkv, x, &l->qkv);
}
