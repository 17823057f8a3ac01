/*
 * internal.h - declarations shared by the files of attention: views of heads, and the functions of context parallelism.
 */
#ifndef MEG_NN_INTERNAL_H
#define MEG_NN_INTERNAL_H
#include "nn/attention.h"

MEG_BEGIN_DECLS

/* ---- attention.c ---- */

/* Views of the query, key and value heads in rows of qkv. */
struct nn_qkv {
    struct meg_heads q, k, v;
};

/* Return views of the query, key and value heads in rows of qkv [s b, (a+2g)d], r = a/g. */
struct nn_qkv nn_qkv_heads(struct meg_mat qkv, int64_t b, int64_t r, int64_t d);
/* Return a view of the heads in rows of o [s b, a d], r = a/g. */
struct meg_heads nn_output_heads(struct meg_mat o, int64_t b, int64_t r, int64_t d);

/* Return the geometry of causal attention over b sequences of s tokens. */
struct meg_attn_geom nn_causal_geom(int64_t s, int64_t b, int64_t a, int64_t g, int64_t d);

/* Return the matrix in which to accumulate m in f32: m itself if it is f32, else buffer. */
struct meg_mat nn_f32_sum(struct meg_mat m, float *buffer);
/* Convert sum, which nn_f32_sum returned for m, to the dtype of m, and store it in m. */
void nn_from_f32(struct meg_ctx *c, struct meg_mat m, struct meg_mat sum);

/* ---- cp_attention.c ---- */

/*
 * Compute a->o and a->lse from qkv with context parallelism.  qkv is either nn_a2a_buffer(l, a->qkv), from which the
 * function first fills a->qkv, or a->qkv itself, filled by an earlier call.
 */
void nn_cp_attn_fwd(struct meg_ctx *c, const struct meg_attn *l, const struct meg_attn_acts *a, struct meg_mat qkv);
/* Compute d->qkv from d->o; d->o and d->delta are overwritten. */
void nn_cp_attn_bwd(struct meg_ctx *c, const struct meg_attn *l, const struct meg_attn_acts *a,
                    const struct meg_attn_grads *d);

/* ---- cp_all_to_all.c ---- */

/*
 * Return m with its data in a2a_recv, which holds the input or the output of an all-to-all; return m itself if a2a_size
 * is 1.
 */
struct meg_mat nn_a2a_buffer(const struct meg_attn *l, struct meg_mat m);
/*
 * Redistribute rows [n, cols], which are this rank's rows with all heads, to full_seq [n h, cols/h]: the rows of all h
 * = a2a_size ranks, in sequence order, with this rank's heads.  The heads of a group are adjacent columns.  full_seq
 * may be the memory of rows.  If h is 1, do nothing.
 */
void nn_a2a_seq_to_heads(struct meg_ctx *c, const struct meg_attn *l, void *full_seq, struct meg_mat rows);
/*
 * Redistribute full_seq to rows: the inverse of nn_a2a_seq_to_heads.  full_seq may be the memory of rows or of
 * nn_a2a_buffer.
 */
void nn_a2a_heads_to_seq(struct meg_ctx *c, const struct meg_attn *l, struct meg_mat rows, void *full_seq);
/* Redistribute the statistics x of each row and head, in place: x [2,b,a,s/2] becomes [2,b,a/h,s h/2]. */
void nn_a2a_stats(struct meg_ctx *c, const struct meg_attn *l, float *x);
/* Return doc_start of the rows of all h ranks, in sequence order; NULL if c->doc_start is NULL. */
const int32_t *nn_a2a_doc_start(struct meg_ctx *c, const struct meg_attn *l);

/* ---- cp_kv_exchange.c ---- */

/* A chunk of each sequence on a rank: rows [row0, row0 + s), whose positions are position0, position0 + 1, ... */
struct nn_cp_chunk {
    int64_t row0, s, position0;
};

struct nn_kv_block {
    struct meg_heads k, v;
};

/* Attention of one layer with context parallelism, after the all-to-all. */
struct nn_cp_attn {
    struct meg_ctx *c;
    const struct meg_attn *l;
    int64_t s, b, a, g, d; /* positions, sequences, query heads, groups on this rank after the all-to-all; head size */
    const int32_t *doc_start;
    struct meg_drop drop;
    struct meg_mat qkv, dqkv;     /* [s b, (a+2g)d]; dqkv is f32 */
    int64_t nq_chunks, nk_chunks; /* number of query chunks of this rank, of key chunks of each rank */
    struct nn_cp_chunk q_chunk[2], k_chunk[2];
    struct nn_kv_block kv;              /* keys and values of the current ring step */
    struct meg_work *recv[2], *send[2]; /* in-flight KV block and gradient block of the ring */
};

/*
 * Exchange of keys and values, and of their gradients, over cp->ring.  Step 0 uses the keys of this rank; the ring_size
 * steps together use the keys of all ranks.  A function for which an exchange has no use does nothing.
 */
struct nn_kv_exchange {
    /*
     * Set *kv to the KV block of a step, once it has arrived, and return the rank that owns the block.  A ring also
     * starts to fetch the next block.
     */
    int64_t (*fetch)(struct nn_cp_attn *p, int64_t step, struct nn_kv_block *kv);
    /* Return the block to which the gradients of a step are to be added. */
    struct nn_kv_block (*grad_block)(struct nn_cp_attn *p, int64_t step);
    /* Send the gradients of a step, once complete, to the next rank of the ring. */
    void (*send_grads)(struct nn_cp_attn *p, int64_t step);
    /* Write the reduced gradients of this rank's keys and values to dqkv. */
    void (*return_grads)(struct nn_cp_attn *p);
};
const struct nn_kv_exchange *nn_kv_exchange_select(const struct meg_cp *cp);

MEG_END_DECLS
#endif
