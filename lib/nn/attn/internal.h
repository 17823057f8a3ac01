/*
 * internal.h - declarations shared by the files of attention: views of heads, and the functions of context parallelism.
 */
#pragma once
#include "nn/attn/self_attention.h"

/* ---- core.c ---- */

/*
 * Return a view of the heads of m that begins with head `part` of each key-value group.  A row of m has heads_per_group
 * heads of d columns for each group.
 */
struct meg_heads nn_heads(struct meg_mat m, int64_t b, int64_t heads_per_group, int64_t d, int64_t part);

/* Views of the query, key and value heads in rows of qkv. */
struct nn_qkv {
    struct meg_heads q, k, v;
};

/* Return views of the query, key and value heads in rows of qkv [s b, (a+2g)d], r = a/g. */
struct nn_qkv nn_qkv_heads(struct meg_mat qkv, int64_t b, int64_t r, int64_t d);
/* Return a view of the heads in rows of o [s b, a d], r = a/g. */
struct meg_heads nn_output_heads(struct meg_mat o, int64_t b, int64_t r, int64_t d);

/* Attention over complete sequences: its operands, or their gradients (o is d_o). */
struct nn_core {
    struct meg_attn_desc desc;
    struct meg_drop drop;
    struct meg_heads o, q, k, v;
    float *lse;
    struct meg_array d_sink; /* gradient of desc.sink, to which backward adds; p may be NULL */
};
/* Compute o = dropout(softmax(scores)) v, and lse, the log-sum-exp of each query's scores (meg_attn_desc). */
void nn_core_fwd(struct meg_ctx *c, const struct nn_core *x);
/* Compute d->q, d->k and d->v from d->o, and add to the gradient d_rel_bias, whose p may be NULL. */
void nn_core_bwd(struct meg_ctx *c, const struct nn_core *d, const struct nn_core *x, struct meg_workspace workspace,
                 struct meg_mat d_rel_bias);
/* Allocate the output o [n,width] and lse of `heads` heads. */
void nn_core_suballoc(const struct meg_block_arena *a, struct meg_mat *o, float **lse, int64_t heads, int64_t d);

/* Return the keys and values [len, cols], cols = g 2 d, of sequence 0 in a layer of a KV cache. */
struct meg_mat nn_cached_kv(const struct meg_ctx *c, struct meg_kv_cache cache, int layer, int64_t len, int64_t cols);
/* Return the offsets [b] of a layer in a table [layers,b] of kv, or NULL if the table is NULL. */
static inline const int64_t *nn_layer_offset(const struct meg_kv_step *kv, const int64_t *table, int layer)
{
    return table ? table + kv->b * layer : NULL;
}

/*
 * Compute x->o and x->lse of the queries of a step of decoding, with one call for all sequences.  `kv` is the cache of
 * sequence 0 (nn_cached_kv), with as many rows as the longest sequence has.  offset [b] has the offsets of the caches
 * of all sequences.  x->desc describes the other properties.
 */
void nn_cached_attn_fwd(struct meg_ctx *c, const struct nn_core *x, struct meg_mat kv, const int64_t *offset);

/*
 * Set the fields of desc that describe the scores of heads [a0, a0 + desc->a) of this rank: the scale, the soft cap and
 * the slopes of ALiBi, but not the sinks, because a descriptor of some of the keys may have none.
 */
void nn_set_scores(struct meg_attn_desc *desc, const struct meg_attn *l, int64_t a0);
/*
 * Return the sinks of the heads of this rank from a0 on; without sinks, p is NULL.  nn_begin_sinks must have been
 * called in this pass.
 */
struct meg_array nn_sink(const struct meg_ctx *c, const struct meg_attn *l, int64_t a0);
/* Return the gradient of nn_sink, to which backward adds; p is NULL unless it is needed. */
struct meg_array nn_sink_grad(const struct meg_ctx *c, const struct meg_attn *l, int64_t a0);
/* Set the sinks that are 0, and in a backward pass their gradients, unless the pass accumulates gradients. */
void nn_begin_sinks(struct meg_ctx *c, const struct meg_attn *l, bool is_backward);

/* Return the descriptor of causal attention over b sequences of s tokens, without a scale, which the caller sets. */
struct meg_attn_desc nn_causal_desc(int64_t s, int64_t b, int64_t a, int64_t g, int64_t d);

/* Return window_left of the descriptor of a layer's attention. */
static inline int64_t nn_window_left(const struct meg_attn *l)
{
    return l->window ? l->window : -1;
}

/*
 * Return the matrix in which to accumulate m in f32: m itself if it is f32, else a matrix of equal shape in `buffer`.
 */
struct meg_mat nn_f32_sum(struct meg_mat m, float *buffer);
/* Convert `sum`, which nn_f32_sum returned for m, to the dtype of m, and store the result in m. */
void nn_from_f32(struct meg_ctx *c, struct meg_mat m, struct meg_mat sum);

/* ---- qk_norm.c ---- */

/* Copy the queries and keys in the rows of qkv to a->q and a->k, which backward needs. */
void nn_qk_norm_keep(struct meg_ctx *c, struct meg_mat qkv, const struct meg_attn_acts *a, const struct meg_attn *l);
/* Normalize the queries and keys in the rows of qkv, in place.  Keep what backward needs in a. */
void nn_qk_norm_fwd(struct meg_ctx *c, struct meg_mat qkv, const struct meg_attn_acts *a, const struct meg_attn *l);
/* Replace the gradients of the normalized queries and keys, in d_qkv, by those before the norms. */
void nn_qk_norm_bwd(struct meg_ctx *c, struct meg_mat d_qkv, const struct meg_attn_acts *a, const struct meg_attn *l);
/* Return whether the operations qk_norm_fwd and qk_norm_bwd compute these norms, together with rotary positions. */
static inline bool nn_qk_norm_is_fused(enum meg_norm type, enum meg_qk_norm_scope scope, bool is_after_rope)
{
    return type == MEG_NORM_RMS && scope == MEG_QK_NORM_HEAD && !is_after_rope;
}
/* Declare the parameters of the norms, with this epsilon. */
void nn_qk_norm_bind(struct meg_binder *b, struct meg_attn *l, const struct meg_attn_conf *c, double eps);
void nn_qk_norm_suballoc_acts(struct meg_attn_acts *acts, const struct meg_block_arena *a,
                              const struct meg_attn_conf *c);
void nn_qk_norm_suballoc_workspace(struct meg_attn *l, const struct meg_block_arena *a, const struct meg_attn_conf *c);

/* ---- cp_attention.c ---- */

/*
 * Compute a->o and a->lse with context parallelism.  Redistribute a->qkv by heads, unless is_recomputed: it has been
 * redistributed in the forward pass.
 */
void nn_cp_attn_fwd(struct meg_ctx *c, const struct meg_attn *l, const struct meg_attn_acts *a, bool is_recomputed);
/* Return the size in bytes of the workspace of attn_bwd that a layer needs, with or without context parallelism. */
size_t nn_attn_bwd_nbytes(const struct meg_ops *op, const struct meg_attn_size *size, const struct meg_cp *cp);
/* Compute d->qkv from d->o; d->o is overwritten. */
void nn_cp_attn_bwd(struct meg_ctx *c, const struct meg_attn *l, const struct meg_attn_acts *a,
                    const struct meg_attn_acts *d);

/* ---- cp_all_to_all.c ---- */

/*
 * Perform an all-to-all from sequence shards to head shards over h = a2a_size ranks, in place.  The matrix `rows`
 * [n, cols] has this rank's rows and all heads.  It is replaced by [n*h, cols/h], the rows of all h ranks, in sequence
 * order; on rank i, they have the i-th of h equal blocks of columns.  If h is 1, do nothing.
 */
void nn_a2a_seq_to_heads(struct meg_ctx *c, const struct meg_attn *l, struct meg_mat rows);
/* Perform the inverse all-to-all, from head shards to sequence shards; `rows` has the shape after it. */
void nn_a2a_heads_to_seq(struct meg_ctx *c, const struct meg_attn *l, struct meg_mat rows);
/* Redistribute lse or delta by heads, in place: x [2,b,a,s/2] becomes [2,b,a/h,s*h/2], h = a2a_size. */
void nn_a2a_stats(struct meg_ctx *c, const struct meg_attn *l, float *x);
/* Return doc_start for the rows of the complete all-to-all group, in sequence order; NULL if c->doc_start is NULL. */
const int32_t *nn_a2a_doc_start(struct meg_ctx *c, const struct meg_attn *l);

/* ---- cp_kv_exchange.c ---- */

/* A chunk of each sequence on a rank: rows [row0, row0 + s), at positions position0, position0 + 1, ... */
struct nn_cp_chunk {
    int64_t row0, s, position0;
};

/* A KV block: the key and value heads of one rank, or their gradients. */
struct nn_kv_block {
    struct meg_heads k, v;
};

/* State of the attention of one layer with context parallelism, after the all-to-all. */
struct nn_cp_attn {
    struct meg_ctx *c;
    const struct meg_attn *l;
    int64_t s, b, a, g, d; /* positions, sequences, query heads, groups on this rank after the all-to-all; head size */
    int64_t a0;            /* the first of these query heads, among those before the all-to-all */
    const int32_t *doc_start;
    struct meg_drop drop;
    struct nn_qkv qkv, dqkv;      /* views of [s,b] vectors of each head; dqkv is f32 */
    int64_t nq_chunks, nk_chunks; /* numbers of query chunks of this rank and of key chunks of each rank */
    struct nn_cp_chunk q_chunk[2], k_chunk[2];
    /*
     * The current step, the next one, which is ring_size after the last step, and the number of earlier steps.  Steps
     * in which no rank has a visible key are skipped.
     */
    int64_t step, next_step, nsteps;
    struct nn_kv_block kv;              /* keys and values of the current ring step */
    struct meg_work *recv[2], *send[2]; /* pending ring messages: [0] KV block, [1] gradients of a KV block */
};

/*
 * Exchange of keys and values, and of their gradients, over cp->ring.  Step 0 uses the keys of this rank, and ring_size
 * steps together use the keys of all ranks.  The functions act on the current step of p, and a function that an
 * exchange does not need is empty.
 */
struct nn_kv_exchange {
    /*
     * Set p->kv to the KV block of the step, and return the rank in cp->ring to which its keys belong.  Work that is
     * queued later waits until the block has arrived.  In a ring, also start to fetch the block of the next step.
     */
    int64_t (*fetch)(struct nn_cp_attn *p);
    /* Return the block to which the gradients of the keys and values of the step are to be added. */
    struct nn_kv_block (*grad_block)(struct nn_cp_attn *p);
    /* Send the accumulated gradients of the step to the rank that uses the same keys in the next step, or their own. */
    void (*send_grads)(struct nn_cp_attn *p);
    /* Write the reduced gradients of this rank's keys and values to dqkv. */
    void (*return_grads)(struct nn_cp_attn *p);
};
const struct nn_kv_exchange *nn_kv_exchange_select(const struct meg_cp *cp);
