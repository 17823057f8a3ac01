/*
 * cp_kv_exchange.c - exchange of keys and values for context parallelism: a ring of point-to-point messages, or an
 * all-gather.  Gradients return to the rank of the keys through the ring, or by a reduce-scatter.
 */
#include "nn/attn/internal.h"

enum { RING_KV, RING_DKV }; /* indices into recv and send: KV blocks, gradient blocks */

static int64_t block_numel(const struct nn_cp_attn *p)
{
    return p->s * p->b * 2 * p->g * p->d;
}

static void *kv_block(const struct nn_cp_attn *p, int64_t i)
{
    return (char *)p->l->workspace.kv + (size_t)(i * block_numel(p)) * meg_dtype_size(p->qkv.k.dtype);
}

static float *dkv_block(const struct nn_cp_attn *p, int64_t i)
{
    return p->l->workspace.dkv + i * block_numel(p);
}

/* Return views of the keys and of the values of a block [s,b,g,2,d]. */
static struct nn_kv_block kv_heads(const struct nn_cp_attn *p, void *block, enum meg_dtype t)
{
    const int64_t row = 2 * p->g * p->d;
    const struct meg_heads k = { block, t, p->b * row, row, 2 * p->d, 0 };
    struct nn_kv_block kv = { k, k };

    kv.v.p = (char *)block + (size_t)p->d * meg_dtype_size(t);
    return kv;
}

/*
 * Copy this rank's keys and values to a KV block.  In qkv and in the block, the value head of a group follows its key
 * head, so one copy is enough.
 */
static void pack(struct nn_cp_attn *p, void *block)
{
    MEG_CALL(p->c->op, p->c->stream, copy_heads, .dst = kv_heads(p, block, p->qkv.k.dtype).k, .src = p->qkv.k,
             .s = p->s, .b = p->b, .g = p->g, .d = 2 * p->d);
}

/* Copy the gradients in a block to the key and value columns of dqkv. */
static void unpack(struct nn_cp_attn *p, float *block)
{
    MEG_CALL(p->c->op, p->c->stream, copy_heads, .dst = p->dqkv.k, .src = kv_heads(p, block, MEG_DTYPE_F32).k,
             .s = p->s, .b = p->b, .g = p->g, .d = 2 * p->d);
}

static struct nn_kv_block zeroed_grads(struct nn_cp_attn *p, float *block)
{
    p->c->op->zero(p->c->stream, block, (size_t)block_numel(p) * sizeof *block);
    return kv_heads(p, block, MEG_DTYPE_F32);
}

/* ---- one rank in the ring: all-to-all only ---- */

static int64_t local_fetch(struct nn_cp_attn *p)
{
    p->kv = (struct nn_kv_block){ p->qkv.k, p->qkv.v };
    return 0;
}

static struct nn_kv_block local_grad_block(struct nn_cp_attn *p)
{
    return (struct nn_kv_block){ p->dqkv.k, p->dqkv.v };
}

static void no_op(struct nn_cp_attn *p)
{
    (void)p;
}

/* ---- ring ---- */

/*
 * Send `from` to the rank that uses the same keys in the next step, and receive `to`.  After the last step, the keys
 * are back at their own rank.
 */
static void ring_send_recv(struct nn_cp_attn *p, int what, void *to, const void *from, enum meg_dtype t)
{
    struct meg_comm *ring = p->l->cp->ring;
    const int hop = (int)(p->next_step - p->step);
    const int next = (ring->rank + hop) % ring->size, previous = (ring->rank + ring->size - hop) % ring->size;

    p->recv[what] = ring->op->start(ring, p->c->stream,
                                    &(struct meg_comm_call){ MEG_RECV, to, NULL, block_numel(p), t, 0, previous });
    p->send[what] = ring->op->start(ring, p->c->stream,
                                    &(struct meg_comm_call){ MEG_SEND, NULL, from, block_numel(p), t, 0, next });
}

static void ring_wait(struct nn_cp_attn *p, int what)
{
    meg_comm_wait(p->l->cp->ring, p->c->stream, p->recv[what]);
    meg_comm_wait(p->l->cp->ring, p->c->stream, p->send[what]);
}

static int64_t ring_fetch(struct nn_cp_attn *p)
{
    const struct meg_comm *ring = p->l->cp->ring;
    void *block = kv_block(p, p->nsteps % 2);

    if (p->step == 0)
        pack(p, block);
    else
        ring_wait(p, RING_KV);
    if (p->next_step < ring->size)
        ring_send_recv(p, RING_KV, kv_block(p, (p->nsteps + 1) % 2), block, p->qkv.k.dtype);
    p->kv = kv_heads(p, block, p->qkv.k.dtype);
    return (ring->rank - p->step + ring->size) % ring->size;
}

/*
 * Return the block in which a step accumulates gradients, set to 0.  Steps alternate between two blocks, so that one
 * block is sent while the other accumulates.  A third block receives the gradients of the previous rank.
 */
static struct nn_kv_block ring_grad_block(struct nn_cp_attn *p)
{
    return zeroed_grads(p, dkv_block(p, p->nsteps % 2));
}

static void ring_send_grads(struct nn_cp_attn *p)
{
    float *local = dkv_block(p, p->nsteps % 2), *received = dkv_block(p, 2);
    const struct meg_mat sum = meg_mat(local, MEG_DTYPE_F32, p->s * p->b, 2 * p->g * p->d);

    if (p->step > 0) {
        ring_wait(p, RING_DKV);
        MEG_CALL(p->c->op, p->c->stream, add_fwd, .z = sum, .x = sum,
                 .y = meg_mat(received, MEG_DTYPE_F32, sum.rows, sum.cols));
    }
    ring_send_recv(p, RING_DKV, received, local, MEG_DTYPE_F32);
}

static void ring_return_grads(struct nn_cp_attn *p)
{
    ring_wait(p, RING_DKV);
    unpack(p, dkv_block(p, 2));
}

/* ---- all-gather ---- */

static int64_t gather_fetch(struct nn_cp_attn *p)
{
    struct meg_comm *g = p->l->cp->ring;
    const int64_t rank = (g->rank + p->step) % g->size;
    void *local = kv_block(p, g->rank);

    if (p->step == 0) {
        pack(p, local);
        meg_all_gather(g, p->c->stream, kv_block(p, 0), local, block_numel(p), p->qkv.k.dtype);
    }
    p->kv = kv_heads(p, kv_block(p, rank), p->qkv.k.dtype);
    return rank;
}

static struct nn_kv_block gather_grad_block(struct nn_cp_attn *p)
{
    const struct meg_comm *g = p->l->cp->ring;

    return zeroed_grads(p, dkv_block(p, (g->rank + p->step) % g->size));
}

static void gather_return_grads(struct nn_cp_attn *p)
{
    struct meg_comm *g = p->l->cp->ring;
    float *local = dkv_block(p, g->rank);

    meg_reduce_scatter(g, p->c->stream, local, dkv_block(p, 0), block_numel(p), MEG_DTYPE_F32, MEG_REDUCE_SUM);
    unpack(p, local);
}

const struct nn_kv_exchange *nn_kv_exchange_select(const struct meg_cp *cp)
{
    static const struct nn_kv_exchange local = { local_fetch, local_grad_block, no_op, no_op };
    static const struct nn_kv_exchange ring = { ring_fetch, ring_grad_block, ring_send_grads, ring_return_grads };
    static const struct nn_kv_exchange gather = { gather_fetch, gather_grad_block, no_op, gather_return_grads };

    return cp->ring_size == 1 ? &local : cp->is_all_gather ? &gather : &ring;
}
