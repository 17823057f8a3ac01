/*
 * internal.h - declarations shared by the files of attention: head views, and context parallelism behind nn_cp_attn_*.
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

/* Return the heads in rows of qkv [s b, (a+2g)d], r = a/g. */
struct nn_qkv nn_qkv_heads(struct meg_mat qkv, int64_t b, int64_t r, int64_t d);
/* Return the heads in rows of o [s b, a d], r = a/g. */
struct meg_heads nn_output_heads(struct meg_mat o, int64_t b, int64_t r, int64_t d);

/* Return the geometry of causal attention in b sequences of s tokens. */
struct meg_attn_geom nn_causal_geom(int64_t s, int64_t b, int64_t a, int64_t g, int64_t d);

/* Return where to sum m in f32: m itself if it is f32, else buffer. */
struct meg_mat nn_f32_sum(struct meg_mat m, float *buffer);
/* Convert the f32 sums of nn_f32_sum to the type of m. */
void nn_from_f32(struct meg_ctx *c, struct meg_mat m, struct meg_mat sum);

/* ---- cp_attention.c ---- */

/*
 * Attention with context parallelism: compute a->o and a->lse from qkv.  qkv is nn_a2a_buffer(l, a->qkv), from which
 * a->qkv is then filled; or a->qkv, as filled by an earlier call.
 */
void nn_cp_attn_fwd(struct meg_ctx *c, const struct meg_attn *l, const struct meg_attn_acts *a, struct meg_mat qkv);
/* Compute d->qkv from d->o; d->o and d->delta are overwritten. */
void nn_cp_attn_bwd(struct meg_ctx *c, const struct meg_attn *l, const struct meg_attn_acts *a,
                    const struct meg_attn_grads *d);

/* ---- cp_all_to_all.c ---- */

/* Return m with the memory that holds it before (or after) the all-to-all; m itself if a2a_size is 1. */
struct meg_mat nn_a2a_buffer(const struct meg_attn *l, struct meg_mat m);
/*
 * Exchange rows [n, cols] with all heads for full_seq [n h, cols/h]: the rows of all h ranks, in sequence order, with
 * this rank's heads.  Heads of one group are adjacent columns.  full_seq may be the memory of rows.  No-op with one
 * rank.
 */
void nn_a2a_seq_to_heads(struct meg_ctx *c, const struct meg_attn *l, void *full_seq, struct meg_mat rows);
/* The inverse.  full_seq may be the memory of rows, or that of nn_a2a_buffer. */
void nn_a2a_heads_to_seq(struct meg_ctx *c, const struct meg_attn *l, struct meg_mat rows, void *full_seq);
/* The same for statistics: x [2,b,a,s/2] becomes [2,b,a/h,s h/2]. */
void nn_a2a_stats(struct meg_ctx *c, const struct meg_attn *l, float *x);
/* Return doc_start of the rows of all h ranks. */
const int32_t *nn_a2a_doc_start(struct meg_ctx *c, const struct meg_attn *l);

/* ---- cp_kv_exchange.c ---- */

/* Rows [row0, row0 + s) of each sequence on a rank, which are at positions position0 .. */
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
    struct meg_mat qkv, dqkv;     /* [s b, (a+2g)d]; dqkv f32 */
    int64_t nq_chunks, nk_chunks; /* query chunks of this rank; key chunks of each rank */
    struct nn_cp_chunk q_chunk[2], k_chunk[2];
    struct nn_kv_block kv;              /* of the current step */
    struct meg_work *recv[2], *send[2]; /* in-flight KV block and gradient block of the ring */
};

/*
 * Exchange of keys and values, and of their gradients, within cp->ring.  Step 0 attends to this rank's keys; ring_size
 * steps attend to those of all ranks.
 */
struct nn_kv_exchange {
    /* Wait for the KV block of a step, start fetching the next one, and return the rank whose block it is. */
    int64_t (*fetch)(struct nn_cp_attn *p, int64_t step, struct nn_kv_block *kv);
    /* Return the block to which the gradients of a step are added. */
    struct nn_kv_block (*grad_block)(struct nn_cp_attn *p, int64_t step);
    /* Send the gradients of a step to the next rank of the ring; call it when they are complete. */
    void (*send_grads)(struct nn_cp_attn *p, int64_t step);
    /* Write the reduced gradients of this rank's keys and values to dqkv. */
    void (*return_grads)(struct nn_cp_attn *p);
};
const struct nn_kv_exchange *nn_kv_exchange_select(const struct meg_cp *cp);

MEG_END_DECLS
#endif
