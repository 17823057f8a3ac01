/* What the files of attention share: an exchange of heads, and keys and values that come from other ranks. */
#ifndef MEG_NN_INTERNAL_H
#define MEG_NN_INTERNAL_H
#include "nn/attention.h"

/* ---- cp_all_to_all.c ----------------------------------------------------------------------------- */

/* Where rows [n, cols] are before their heads are exchanged, and come back to: in the room, or at with one rank. */
struct meg_mat nn_a2a_buffer(const struct meg_attn *l, struct meg_mat at);
/*
 * wide [n h, cols/h]: the rows of all h ranks, in order of the sequence, of this rank's heads; from rows [n, cols]
 * with all heads, whose groups lie side by side.  Nothing is done with one rank.  wide may be rows' memory.
 */
void nn_a2a_seq_to_heads(struct meg_ctx *c, const struct meg_attn *l, void *wide, struct meg_mat rows);
/* And back; wide and rows may be the same memory, or wide that of nn_a2a_buffer. */
void nn_a2a_heads_to_seq(struct meg_ctx *c, const struct meg_attn *l, struct meg_mat rows, void *wide);
/* The same for statistics of rows: x [2,b,a,s/2] becomes [2,b,a/h,s h/2]. */
void nn_a2a_stats(struct meg_ctx *c, const struct meg_attn *l, float *x);
/* doc_start of the rows of all h ranks. */
const int32_t *nn_a2a_doc_start(struct meg_ctx *c, const struct meg_attn *l);

/* ---- keys.c ----------------------------------------------------------------------------------- */

/* Rows [row, row + s) of s*b, which stand at positions first .. of their sequence. */
struct nn_cp_chunk {
    int64_t row0, s, position0;
};

struct nn_kv_block {
    struct meg_heads k, v;
};

/* Attention of one layer under way, after heads are exchanged. */
struct nn_cp_attn {
    struct meg_ctx *c;
    const struct meg_attn *l;
    int64_t s, b, a, g, d; /* positions, sequences, heads, groups here */
    const int32_t *doc_start;
    struct meg_drop drop;
    struct meg_mat qkv, dqkv;     /* [s b, (a+2g)d]; dqkv f32 */
    int64_t nq_chunks, nk_chunks; /* pieces of queries, and of the keys of one rank */
    struct nn_cp_chunk q_chunk[2], k_chunk[2];
    struct nn_kv_block kv;              /* of the present step */
    struct meg_work *recv[2], *send[2]; /* keys on their way, and gradients */
};

/* How keys and values of other ranks come, and their gradients go; step 0 are this rank's, and size steps are all. */
struct nn_kv_exchange {
    /* The rank whose keys and values step brings, in kv; the next are under way. */
    int64_t (*fetch)(struct nn_cp_attn *p, int64_t step, struct nn_kv_block *kv);
    /* Where their gradients are added to. */
    struct nn_kv_block (*grad_block)(struct nn_cp_attn *p, int64_t step);
    /* All of the step's are there. */
    void (*send_grads)(struct nn_cp_attn *p, int64_t step);
    /* The sums of this rank's go to dqkv. */
    void (*return_grads)(struct nn_cp_attn *p);
};
const struct nn_kv_exchange *nn_kv_exchange_select(const struct meg_cp *cp);

/* ---- cp_attention.c --------------------------------------------------------------------------------- */

/*
 * o [n, a d] and lse [b,a,s] from qkv [n, (a+2g)d], as positions have turned it and heads are exchanged.  Where
 * ranks share sequences, statistics are those of the heads and rows here, first of one piece, then of the other.
 */
void nn_cp_attn_fwd(struct meg_ctx *c, const struct meg_attn *l, struct meg_mat o, float *lse, struct meg_mat qkv);
/* dqkv from d_o, which is destroyed; delta is scratch. */
void nn_cp_attn_bwd(struct meg_ctx *c, const struct meg_attn *l, struct meg_mat dqkv, struct meg_mat d_o, float *delta,
                    struct meg_mat o, const float *lse, struct meg_mat qkv);

/* ---------------------------------------------------------------------------------------------- */

/* The query (part 0), key (part a/g) or value (part a/g+1) heads inside packed rows. */
static inline struct meg_heads nn_qkv_heads(struct meg_mat m, int64_t b, int64_t r, int64_t d, int64_t part)
{
    struct meg_heads h = { 0 };

    h.p = (char *)m.p + (size_t)(part * d) * meg_dtype_size(m.dtype);
    h.dtype = m.dtype;
    h.ld_s = b * m.ld;
    h.ld_b = m.ld;
    h.ld_g = (r + 2) * d;
    h.ld_h = d;
    return h;
}

#endif
