/*
 * ops_attention.h - the operations of attention: the formula and the struct of the arguments of each, and at the end of
 * the file a row that describes the arguments (tensor/op_row.h).
 */
#ifndef MEG_TENSOR_OPS_ATTENTION_H
#define MEG_TENSOR_OPS_ATTENTION_H
#include "tensor/operands.h"

MEG_BEGIN_DECLS

/*
 * Attention over b complete sequences, or between a chunk of queries and a chunk of keys of each.  The score of a query
 * at position p and a key at position t, for query head j, is
 *   cap(scale * q.k) - alibi_slope[j] * |p - t| + rel_bias[bucket(t - p), j]
 * Absent terms are 0, and cap(x) = softcap * tanh(x / softcap) (Gemma 2), or x if softcap is 0.  A key is masked unless
 * it satisfies the conditions of window_left, window_right, doc_start and key_length.  Pointers are to device memory.
 *
 * bucket is the function of T5 (Raffel et al. 2020), as in Hugging Face and Megatron.  Let B be the number of rows of
 * rel_bias, or half of this number if rel_bias_is_bidirectional is set, and e = B/2, rounded down.  The distance n is
 * max(p - t, 0), or |p - t| if rel_bias_is_bidirectional is set.
 *   bucket = n if n < e, else min(B - 1, e + floor(log(n / e) / log(rel_bias_max_distance / e) * (B - e))), in f32
 * If rel_bias_is_bidirectional is set, B is added for keys with t > p.
 *
 * Callers keep ld_b = g * ld_g in qkv and o, and lse and delta are contiguous (nn/attn/self_attention.h says why).
 */
struct meg_attn_desc {
    int64_t s_q, s_k, b; /* queries and keys per sequence, number of sequences */
    int64_t a, g;        /* query heads, key-value groups (a % g == 0) */
    int64_t d, d_v;      /* columns of a head of q and k, columns of a head of v and o */
    int64_t s;           /* length of the full sequence; used in indices of dropout units (struct meg_drop) */
    int64_t q0, k0;      /* query t is at position q0 + t of its sequence, key j at k0 + j */
    float scale;
    float softcap; /* 0: none */

    /* A query at position p attends to positions p - window_left to p + window_right; -1: no limit, (-1, 0): causal. */
    int64_t window_left, window_right;
    /*
     * [s_q, b] or NULL: position of the first visible key of a query (packed documents); not less than that of an
     * earlier query
     */
    const int32_t *doc_start;
    const int32_t
        *key_length; /* [b] or NULL: keys of sequence i are visible at positions below key_length[i] (padding) */

    const float *alibi_slope; /* [a] or NULL (Press et al. 2022) */
    struct meg_mat rel_bias;  /* relative attention bias [buckets, a]; p is NULL if absent */
    int64_t rel_bias_max_distance;
    int rel_bias_is_bidirectional;
    /*
     * Attention sinks [a] (GPT-OSS): exp(sink[j]) is added to the sum of the exponentials of the scores of each query
     * of head j.  This sum, exp(lse), is the denominator of the softmax.  If the keys are in chunks, pass the sinks
     * with one chunk only.
     */
    struct meg_array sink;

    /* The following fields are for decoding.  attn_bwd requires that query_start and block_offset are NULL. */
    const int32_t
        *query_start; /* [b] or NULL: query t of sequence i is at position query_start[i] + t instead of q0 + t */
    /*
     * KV caches in blocks, which may be separate allocations: [b, blocks_per_seq] or NULL.  Key t of sequence i is row
     * t % block_size of the block that begins at element block_offset[i, t / block_size] of k and, for the value, of v.
     * ld_b of k and v is not used, and k0 is 0.  The offsets of all visible keys and of earlier keys must be valid.
     * An offset in bytes must be a multiple of 16 plus a multiple of the size of a row (ld_s elements).
     */
    const int64_t *block_offset;
    int64_t block_size, blocks_per_seq;
};

/*
 * o = dropout(softmax(scores)) v (struct meg_attn_desc); with r = a/g, query head j uses group j/r of k and v.  lse
 * [b,a,s_q] f32, an output, is the log-sum-exp of each query's scores and sink, before dropout.  A query for which all
 * keys are masked has o = 0, and lse is the sink, or -infinity without sinks.  o may be f32 when q, k and v are bf16 or
 * f16.
 */
struct meg_attn_fwd_args {
    const struct meg_attn_desc *desc;
    struct meg_heads o;
    float *lse;
    struct meg_heads q, k, v;
    const struct meg_drop *drop;
};

/*
 * Merge (o, lse) over some keys with (o_part, lse_part) of the same queries over other keys, in place (Dao 2023,
 * section 3.1): o = sum of exp(lse_i - lse) * o_i with lse = log sum of exp(lse_i).  o and o_part are f32.  If one of
 * the two lse is -infinity for a query (all keys masked, no sink), the result is exactly the other part.
 */
struct meg_attn_merge_args {
    const struct meg_attn_desc *desc;
    struct meg_heads o;
    float *lse;
    struct meg_heads o_part;
    const float *lse_part;
};

/*
 * delta [b,a,s_q] f32 = sum of d_o * o over the columns of a head; o is the attention output over all keys.  attn_bwd
 * computes delta itself unless it is given.  With all-to-all context parallelism, a rank computes delta of its own rows
 * and redistributes delta by heads, because o is larger.
 */
struct meg_attn_delta_args {
    const struct meg_attn_desc *desc;
    float *delta;
    struct meg_heads d_o, o;
};

/*
 * Compute the gradients of attn_fwd (Dao et al. 2022, appendix B).  The gradient of a tensor has the shape of the
 * tensor.  A gradient in bf16 or f16 is rounded once per call.
 */
struct meg_attn_bwd_args {
    const struct meg_attn_desc *desc;
    struct meg_heads dq, dk, dv;    /* out; f32, bf16 or f16, of one type */
    int accumulate;                 /* add the gradients to dq, dk and dv instead of overwriting dq, dk and dv */
    struct meg_mat d_rel_bias;      /* out [buckets, a]; p is NULL if this gradient is not needed */
    struct meg_array d_sink;        /* out [a]; p is NULL if this gradient is not needed */
    int accumulate_params;          /* add to d_rel_bias and d_sink instead of overwriting them */
    struct meg_heads d_o, o;        /* o is not read if delta is given */
    const float *lse;               /* of attn_fwd, over all keys */
    const float *delta;             /* of attn_delta, over all keys; NULL: attn_bwd computes delta from d_o and o */
    struct meg_heads q, k, v;       /* k and v may be a chunk of the keys */
    struct meg_workspace workspace; /* at least attn_bwd_nbytes */
    const struct meg_drop *drop;
};

/*
 * Copy key or value heads [s, b, g, d], for example into a KV cache.  dst and src have the same data type, which may be
 * any enum meg_dtype.  Unless dst_offset [b], in device memory, is NULL, the heads of sequence i begin at element
 * dst_offset[i] of dst, instead of i * ld_b; see block_offset for the alignment.
 */
struct meg_copy_heads_args {
    struct meg_heads dst;
    const int64_t *dst_offset;
    struct meg_heads src;
    int64_t s, b, g, d;
};

/* The operations of this file (MEG_ISA_OPS). */
#define MEG_ATTENTION_OPS(X) X(attn_fwd) X(attn_merge) X(attn_delta) X(attn_bwd)

MEG_END_DECLS
#endif

#ifdef MEG_OP_ROW
/* clang-format off */
/* Query heads are [s_q,b,g,r,d], r = a/g; keys are [s_k,b,g,1,d] or, in blocks of a KV cache, [block_size,1,g,1,d]. */
MEG_OP_ROW(attn_fwd, NULL,
    VALUE(attn_fwd, desc) FIELD(attn_fwd, o, OUT, "s_q b g r d_v") FIELD(attn_fwd, lse, OUT, "b a s_q")
    FIELD(attn_fwd, q, IN, "s_q b g r d") FIELD(attn_fwd, k, IN, "s_k b_k g 1 d")
    FIELD(attn_fwd, v, IN, "s_k b_k g 1 d_v") VALUE(attn_fwd, drop))
MEG_OP_ROW(attn_merge, check_attn_merge,
    VALUE(attn_merge, desc) FIELD(attn_merge, o, INOUT, "s_q b g r d_v") FIELD(attn_merge, lse, INOUT, "b a s_q")
    FIELD(attn_merge, o_part, IN, "s_q b g r d_v") FIELD(attn_merge, lse_part, IN, "b a s_q"))
MEG_OP_ROW(attn_delta, NULL,
    VALUE(attn_delta, desc) FIELD(attn_delta, delta, OUT, "b a s_q") FIELD(attn_delta, d_o, IN, "s_q b g r d_v")
    FIELD(attn_delta, o, IN, "s_q b g r d_v"))
MEG_OP_ROW(attn_bwd, check_attn_bwd,
    VALUE(attn_bwd, desc) FIELD(attn_bwd, dq, OUT, "s_q b g r d") FIELD(attn_bwd, dk, OUT, "s_k b_k g 1 d")
    FIELD(attn_bwd, dv, OUT, "s_k b_k g 1 d_v") FIELD(attn_bwd, d_rel_bias, OUT | OPTIONAL, "buckets a")
    FIELD(attn_bwd, d_sink, OUT | OPTIONAL, "a") FIELD(attn_bwd, d_o, IN, "s_q b g r d_v")
    FIELD(attn_bwd, o, IN | OPTIONAL, "s_q b g r d_v") FIELD(attn_bwd, lse, IN, "b a s_q")
    FIELD(attn_bwd, delta, IN | OPTIONAL, "b a s_q") FIELD(attn_bwd, q, IN, "s_q b g r d")
    FIELD(attn_bwd, k, IN, "s_k b_k g 1 d") FIELD(attn_bwd, v, IN, "s_k b_k g 1 d_v") VALUE(attn_bwd, drop)
    VALUE(attn_bwd, accumulate))
MEG_OP_ROW(copy_heads, check_copy_heads,
    FIELD(copy_heads, dst, OUT | ANY_DTYPE, "s 1 g 1 d") FIELD(copy_heads, dst_offset, IN | OPTIONAL, "b")
    FIELD(copy_heads, src, IN | ANY_DTYPE, "s b g 1 d") VALUE(copy_heads, s) VALUE(copy_heads, b) VALUE(copy_heads, g)
    VALUE(copy_heads, d))
/* clang-format on */
#endif

#ifdef MEG_PLACEMENT_RULE
/* clang-format off */
MEG_PLACEMENT_RULE(attn_fwd, "o lse", .factors = "q k v", .complete = "d")
MEG_PLACEMENT_RULE(attn_merge, "o", .factors = "o o_part lse lse_part", .complete = "d")
MEG_PLACEMENT_RULE(attn_merge, "lse", .factors = "lse lse_part", .complete = "d")
MEG_PLACEMENT_RULE(attn_delta, "delta", .factors = "d_o o", .linear = "d_o", .complete = "d")
MEG_PLACEMENT_RULE(attn_bwd, "d_rel_bias", .factors = "d_o o q k v lse delta", .linear = "d_o", .complete = "d")
MEG_PLACEMENT_RULE(attn_bwd, "d_sink", .factors = "d_o o lse delta", .linear = "d_o", .complete = "d")
MEG_PLACEMENT_RULE(attn_bwd, "dq", .factors = "d_o o q k v lse delta", .linear = "d_o", .complete = "d")
MEG_PLACEMENT_RULE(attn_bwd, "dk dv", .factors = "d_o o q k v lse delta", .linear = "d_o", .complete = "d")
MEG_PLACEMENT_RULE(copy_heads, "dst", .factors = "src", .linear = "src")
/* clang-format on */
#endif
