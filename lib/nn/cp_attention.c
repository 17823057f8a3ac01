/*
 * Attention of this rank's queries to the keys of its whole context-parallel group, part by part: a piece of its
 * rows against a piece of a rank's keys, where any of those can be seen.  Parts are merged forward and added up
 * backward.
 */
#include <math.h>
#include "nn/internal.h"

/* Those of s positions that the rank at place i of n has: both of its pieces, or all when there is one. */
static void rank_chunks(struct nn_cp_chunk *p, int64_t count, int64_t s, int64_t i, int64_t n)
{
    const int64_t half = s / 2;

    p[0] = count == 1 ? (struct nn_cp_chunk){ 0, s, 0 } : (struct nn_cp_chunk){ 0, half, i * half };
    p[1] = (struct nn_cp_chunk){ half, half, (2 * n - 1 - i) * half };
}

static bool sees(const struct nn_cp_chunk *q, const struct nn_cp_chunk *k)
{
    return k->position0 < q->position0 + q->s;
}

/* Keys stay whole where they do not travel: what is exchanged for heads arrives as the whole sequence. */
static struct nn_cp_attn begin(struct meg_ctx *c, const struct meg_attn *l, struct meg_mat qkv)
{
    const struct meg_cp *cp = l->cp;
    struct nn_cp_attn p = { .c = c, .l = l };

    p.s = c->s * cp->a2a_size;
    p.b = c->b;
    p.a = l->a / cp->a2a_size;
    p.g = l->g / cp->a2a_size;
    p.d = l->d;
    p.qkv = meg_mat(qkv.p, qkv.dtype, qkv.rows * cp->a2a_size, qkv.cols / cp->a2a_size);
    p.doc_start = nn_a2a_doc_start(c, l);
    p.drop = meg_ctx_drop(c, l->dropout, l->layer, MEG_DROP_ATTN);
    p.drop.unit0 = l->head0 + cp->a2a->rank * p.a;
    p.nq_chunks = cp->a2a_size * cp->ring_size > 1 ? 2 : 1;
    p.nk_chunks = cp->ring_size > 1 ? 2 : 1;
    rank_chunks(p.q_chunk, p.nq_chunks, p.s, cp->ring->rank, cp->ring_size);
    return p;
}

/* Have the keys and values of a step. */
static void meet(struct nn_cp_attn *p, const struct nn_kv_exchange *carrier, int64_t step)
{
    rank_chunks(p->k_chunk, p->nk_chunks, p->s, carrier->fetch(p, step, &p->kv), p->l->cp->ring_size);
}

static struct meg_attn_geom geometry(const struct nn_cp_attn *p, const struct nn_cp_chunk *q,
                                     const struct nn_cp_chunk *k)
{
    struct meg_attn_geom g = { 0 };

    g.s_q = q->s;
    g.s_k = k->s;
    g.b = p->b;
    g.a = p->a;
    g.g = p->g;
    g.d = p->d;
    g.s = p->s * p->l->cp->ring_size;
    g.q0 = q->position0;
    g.k0 = k->position0;
    g.is_causal = 1;
    g.scale = 1 / sqrtf((float)p->d);
    g.doc_start = p->doc_start ? p->doc_start + q->row0 * p->b : NULL;
    return g;
}

static struct meg_heads from(struct meg_heads x, int64_t row)
{
    x.p = (char *)x.p + (size_t)(row * x.ld_s) * meg_dtype_size(x.dtype);
    return x;
}

/* Query heads inside packed rows, and heads of an output, which lie side by side. */
static struct meg_heads queries(const struct nn_cp_attn *p, struct meg_mat qkv, int64_t row)
{
    return from(nn_qkv_heads(qkv, p->b, p->a / p->g, p->d, 0), row);
}

static struct meg_heads outputs(const struct nn_cp_attn *p, struct meg_mat o, int64_t row)
{
    struct meg_heads h = nn_qkv_heads(o, p->b, p->a / p->g, p->d, 0);

    h.ld_g = p->a / p->g * p->d;
    return from(h, row);
}

/* Where a piece's statistics begin: those of the two pieces lie one after the other. */
static int64_t stats(const struct nn_cp_attn *p, const struct nn_cp_chunk *q)
{
    return q->row0 * p->b * p->a;
}

/* m [n, cols] as it is after an exchange of heads, at p. */
static struct meg_mat exchanged(const struct meg_cp *cp, struct meg_mat m, void *p)
{
    return meg_mat(p, m.dtype, m.rows * cp->a2a_size, m.cols / cp->a2a_size);
}

static struct meg_mat in_f32(struct meg_mat m, float *room)
{
    return m.dtype == MEG_DTYPE_F32 ? m : meg_mat(room, MEG_DTYPE_F32, m.rows, m.cols);
}

static void narrow(struct meg_ctx *c, struct meg_mat to, struct meg_mat from32)
{
    if (to.p != from32.p)
        c->op->cast(c->stream, to.p, to.dtype, from32.p, from32.dtype, to.rows * to.cols);
}

/* What queries i take from keys j: all they have so far, or merged with it. */
static void attn_chunk_fwd(struct nn_cp_attn *p, struct meg_mat o, float *lse, int64_t i, int64_t j, bool is_first)
{
    const struct nn_cp_chunk *q = &p->q_chunk[i], *k = &p->k_chunk[j];
    const struct meg_attn_geom geom = geometry(p, q, k);
    const struct meg_attn_workspace *room = p->l->workspace;
    const struct meg_heads to = outputs(p, o, q->row0);
    const struct meg_heads part = outputs(p, meg_mat(room->o_part, MEG_DTYPE_F32, o.rows / 2, o.cols), 0);
    float *to_lse = lse + stats(p, q);

    p->c->op->attn_fwd(p->c->stream, &geom, is_first ? to : part, is_first ? to_lse : room->lse_part,
                       queries(p, p->qkv, q->row0), from(p->kv.k, k->row0), from(p->kv.v, k->row0), &p->drop);
    if (!is_first)
        p->c->op->attn_merge(p->c->stream, &geom, to, to_lse, part, room->lse_part);
}

void nn_cp_attn_fwd(struct meg_ctx *c, const struct meg_attn *l, struct meg_mat o, float *lse, struct meg_mat qkv)
{
    const struct nn_kv_exchange *carrier = nn_kv_exchange_select(l->cp);
    const struct meg_mat wide = exchanged(l->cp, o, nn_a2a_buffer(l, o).p);
    const struct meg_mat sum = l->cp->ring_size > 1 ? in_f32(wide, l->workspace->o) : wide;
    struct nn_cp_attn p = begin(c, l, qkv);

    for (int64_t step = 0; step < l->cp->ring_size; step++) {
        meet(&p, carrier, step);
        for (int64_t i = 0; i < p.nq_chunks; i++)
            for (int64_t j = 0; j < p.nk_chunks; j++)
                if (sees(&p.q_chunk[i], &p.k_chunk[j]))
                    attn_chunk_fwd(&p, sum, lse, i, j, step == 0 && j == 0); /* all see their own rank's first piece */
    }
    narrow(c, wide, sum);
    nn_a2a_heads_to_seq(c, l, o, wide.p);
}

/* delta of this rank's own rows and all its heads, a piece after the other, and then as heads are exchanged. */
static void compute_delta(struct meg_ctx *c, const struct meg_attn *l, float *delta, struct meg_mat d_o,
                          struct meg_mat o)
{
    struct nn_cp_attn p = { .l = l, .s = c->s, .b = c->b, .a = l->a, .g = l->g, .d = l->d };
    const int64_t count = l->cp->a2a_size * l->cp->ring_size > 1 ? 2 : 1;

    rank_chunks(p.q_chunk, count, p.s, 0, 1);
    for (int64_t i = 0; i < count; i++) {
        const struct nn_cp_chunk *q = &p.q_chunk[i];
        const struct meg_attn_geom geom = geometry(&p, q, q);

        c->op->attn_delta(c->stream, &geom, delta + stats(&p, q), outputs(&p, d_o, q->row0), outputs(&p, o, q->row0));
    }
    nn_a2a_stats(c, l, delta);
}

static void attn_chunk_bwd(struct nn_cp_attn *p, const struct nn_kv_block *dkv, struct meg_mat d_o, const float *delta,
                           const float *lse, int64_t i, int64_t j)
{
    const struct nn_cp_chunk *q = &p->q_chunk[i], *k = &p->k_chunk[j];
    const struct meg_attn_geom geom = geometry(p, q, k);
    const int64_t at = stats(p, q);

    p->c->op->attn_bwd(p->c->stream, &geom, queries(p, p->dqkv, q->row0), from(dkv->k, k->row0), from(dkv->v, k->row0),
                       outputs(p, d_o, q->row0), lse + at, delta + at, queries(p, p->qkv, q->row0),
                       from(p->kv.k, k->row0), from(p->kv.v, k->row0), &p->drop, p->nq_chunks > 1);
}

void nn_cp_attn_bwd(struct meg_ctx *c, const struct meg_attn *l, struct meg_mat dqkv, struct meg_mat d_o, float *delta,
                    struct meg_mat o, const float *lse, struct meg_mat qkv)
{
    const struct nn_kv_exchange *carrier = nn_kv_exchange_select(l->cp);
    const struct meg_mat wide_o = exchanged(l->cp, d_o, d_o.p), wide = exchanged(l->cp, dqkv, nn_a2a_buffer(l, dqkv).p);
    struct nn_cp_attn p = begin(c, l, qkv);

    compute_delta(c, l, delta, d_o, o);
    nn_a2a_seq_to_heads(c, l, wide_o.p, d_o);
    p.dqkv = in_f32(wide, l->workspace->dqkv);
    if (p.nq_chunks > 1)
        c->op->zero(c->stream, p.dqkv.p, (size_t)(p.dqkv.rows * p.dqkv.cols) * sizeof(float));
    for (int64_t step = 0; step < l->cp->ring_size; step++) {
        struct nn_kv_block dkv;

        meet(&p, carrier, step);
        dkv = carrier->grad_block(&p, step);
        for (int64_t i = 0; i < p.nq_chunks; i++)
            for (int64_t j = 0; j < p.nk_chunks; j++)
                if (sees(&p.q_chunk[i], &p.k_chunk[j]))
                    attn_chunk_bwd(&p, &dkv, wide_o, delta, lse, i, j);
        carrier->send_grads(&p, step);
    }
    carrier->return_grads(&p);
    narrow(c, wide, p.dqkv);
    nn_a2a_heads_to_seq(c, l, dqkv, wide.p);
}
