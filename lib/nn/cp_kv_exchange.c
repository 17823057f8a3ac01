/* Keys and values of other ranks, and the way home of their gradients: by a ring, or all at once. */
#include "nn/internal.h"

enum { KEYS, GRADS }; /* what is under way: index of recv and send */

static int64_t slot_size(const struct nn_cp_attn *p)
{
    return p->s * p->b * 2 * p->g * p->d;
}

static void *kv_slot(const struct nn_cp_attn *p, int64_t i)
{
    return (char *)p->l->workspace->kv + (size_t)(i * slot_size(p)) * meg_dtype_size(p->qkv.dtype);
}

static float *dkv_slot(const struct nn_cp_attn *p, int64_t i)
{
    return p->l->workspace->dkv + i * slot_size(p);
}

/* Key and value heads of [s,b,g,2,d]. */
static struct nn_kv_block heads_of(const struct nn_cp_attn *p, void *slot, enum meg_dtype t)
{
    const int64_t row = 2 * p->g * p->d;
    const struct meg_heads k = { slot, t, p->b * row, row, 2 * p->d, 0 };
    struct nn_kv_block kv = { k, k };

    kv.v.p = (char *)slot + (size_t)p->d * meg_dtype_size(t);
    return kv;
}

/* Key and value heads inside rows with queries. */
static struct nn_kv_block own(const struct nn_cp_attn *p, struct meg_mat rows)
{
    const int64_t r = p->a / p->g;
    const struct nn_kv_block kv = { nn_qkv_heads(rows, p->b, r, p->d, r), nn_qkv_heads(rows, p->b, r, p->d, r + 1) };

    return kv;
}

/* A group's key and value lie side by side in both. */
static void pack(struct nn_cp_attn *p, void *slot)
{
    p->c->op->copy_heads(p->c->stream, heads_of(p, slot, p->qkv.dtype).k, own(p, p->qkv).k, p->s, p->b, p->g, 2 * p->d);
}

static void unpack(struct nn_cp_attn *p, float *slot)
{
    p->c->op->copy_heads(p->c->stream, own(p, p->dqkv).k, heads_of(p, slot, MEG_DTYPE_F32).k, p->s, p->b, p->g,
                         2 * p->d);
}

static struct nn_kv_block cleared(struct nn_cp_attn *p, float *slot)
{
    p->c->op->zero(p->c->stream, slot, (size_t)slot_size(p) * sizeof *slot);
    return heads_of(p, slot, MEG_DTYPE_F32);
}

/* ---- one rank --------------------------------------------------------------------------------- */

static int64_t own_keys(struct nn_cp_attn *p, int64_t step, struct nn_kv_block *kv)
{
    (void)step;
    *kv = own(p, p->qkv);
    return 0;
}

static struct nn_kv_block own_grads(struct nn_cp_attn *p, int64_t step)
{
    (void)step;
    return own(p, p->dqkv);
}

static void no_step(struct nn_cp_attn *p, int64_t step)
{
    (void)p, (void)step;
}

static void no_return(struct nn_cp_attn *p)
{
    (void)p;
}

/* ---- a ring ----------------------------------------------------------------------------------- */

/* To the next rank what is in from, and into to what comes from the one before. */
static void ring_send_recv(struct nn_cp_attn *p, int what, void *to, const void *from, enum meg_dtype t)
{
    struct meg_comm *ring = p->l->cp->ring;
    const int next = (ring->rank + 1) % ring->size, before = (ring->rank + ring->size - 1) % ring->size;

    p->recv[what] = ring->op->recv(ring, to, slot_size(p), t, before);
    p->send[what] = ring->op->send(ring, from, slot_size(p), t, next);
}

static void arrive(struct nn_cp_attn *p, int what)
{
    meg_comm_wait(p->l->cp->ring, p->recv[what]);
    meg_comm_wait(p->l->cp->ring, p->send[what]);
}

static int64_t ring_keys(struct nn_cp_attn *p, int64_t step, struct nn_kv_block *kv)
{
    const struct meg_comm *ring = p->l->cp->ring;
    void *slot = kv_slot(p, step % 2);

    if (step == 0)
        pack(p, slot);
    else
        arrive(p, KEYS);
    if (step + 1 < ring->size)
        ring_send_recv(p, KEYS, kv_slot(p, (step + 1) % 2), slot, p->qkv.dtype);
    *kv = heads_of(p, slot, p->qkv.dtype);
    return (ring->rank - step + ring->size) % ring->size;
}

/* Two slots are computed into by turns, so that one can be on its way; what arrives is in the third. */
static struct nn_kv_block ring_grads(struct nn_cp_attn *p, int64_t step)
{
    return cleared(p, dkv_slot(p, step % 2));
}

static void ring_done(struct nn_cp_attn *p, int64_t step)
{
    float *mine = dkv_slot(p, step % 2), *theirs = dkv_slot(p, 2);
    const struct meg_mat sum = meg_mat(mine, MEG_DTYPE_F32, p->s * p->b, 2 * p->g * p->d);

    if (step > 0) {
        arrive(p, GRADS);
        p->c->op->add_fwd(p->c->stream, sum, sum, meg_mat(theirs, MEG_DTYPE_F32, sum.rows, sum.cols), NULL, NULL);
    }
    ring_send_recv(p, GRADS, theirs, mine, MEG_DTYPE_F32);
}

static void ring_return_grads(struct nn_cp_attn *p)
{
    arrive(p, GRADS);
    unpack(p, dkv_slot(p, 2));
}

/* ---- gathered --------------------------------------------------------------------------------- */

static int64_t gather_keys(struct nn_cp_attn *p, int64_t step, struct nn_kv_block *kv)
{
    struct meg_comm *g = p->l->cp->ring;
    void *mine = kv_slot(p, g->rank);

    if (step == 0) {
        pack(p, mine);
        meg_comm_wait(g, g->op->all_gather(g, kv_slot(p, 0), mine, slot_size(p), p->qkv.dtype));
    }
    *kv = heads_of(p, kv_slot(p, (g->rank + step) % g->size), p->qkv.dtype);
    return (g->rank + step) % g->size;
}

static struct nn_kv_block gather_grads(struct nn_cp_attn *p, int64_t step)
{
    const struct meg_comm *g = p->l->cp->ring;

    return cleared(p, dkv_slot(p, (g->rank + step) % g->size));
}

static void gather_return_grads(struct nn_cp_attn *p)
{
    struct meg_comm *g = p->l->cp->ring;
    float *mine = dkv_slot(p, g->rank);

    meg_comm_wait(g, g->op->reduce_scatter(g, mine, dkv_slot(p, 0), slot_size(p), MEG_DTYPE_F32, MEG_REDUCE_SUM));
    unpack(p, mine);
}

const struct nn_kv_exchange *nn_kv_exchange_select(const struct meg_cp *cp)
{
    static const struct nn_kv_exchange one = { own_keys, own_grads, no_step, no_return };
    static const struct nn_kv_exchange ring = { ring_keys, ring_grads, ring_done, ring_return_grads };
    static const struct nn_kv_exchange gather = { gather_keys, gather_grads, no_step, gather_return_grads };

    return cp->ring_size == 1 ? &one : cp->is_all_gather ? &gather : &ring;
}
