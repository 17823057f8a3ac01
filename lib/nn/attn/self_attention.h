/*
 * self_attention.h - self-attention, causal or bidirectional: qkv linear, rotary positions, attention over this rank's
 * heads, output linear.  A row of qkv consists of key-value groups.  A group is r = a/g query heads, one key head and
 * one value head, of d columns each.
 *
 *   a row of qkv with g = 2, r = 2:   q0 q1 k0 v0 | q2 q3 k1 v1      ld_g = (r + 2) d,  ld_b = g ld_g
 *
 * The query heads have no common stride, which cuDNN requires.  A kernel can treat group j of sequence i as sequence
 * i g + j, with r query heads and one key-value head, of a batch of b g sequences, whose stride is ld_g.
 *
 * With qk_layernorm, an RMSNorm is applied to each query and key head before rotary positions (Dehghani et al. 2023;
 * Qwen3).  Tensor-parallel ranks have the same weights of these norms, but different heads.
 *
 * self_attention.c implements attention over complete sequences; cp_*.c add context parallelism (cp_groups.h).
 */
#ifndef MEG_NN_ATTN_SELF_ATTENTION_H
#define MEG_NN_ATTN_SELF_ATTENTION_H
#include "nn/attn/cp_groups.h"
#include "nn/block.h"

/* Cosines and sines of rotary position embedding, which layers share.  Without rotary positions, half is 0. */
struct meg_rope {
    float *cos, *sin; /* [positions, half] */
    int64_t half;     /* number of rotated column pairs per head */
    int is_interleaved;
    float *q_cos, *q_sin; /* tables of the queries, if they are not those of the keys; otherwise NULL */
    /*
     * The number of the first rows, which belong to sequences of at most this length; the rows of longer sequences
     * follow (LongRoPE).  0: all rows are for all sequences.
     */
    int64_t short_positions;
};

/* Relative bias of attention scores (struct meg_attn_desc), which all layers of a stack use. */
struct meg_rel_bias {
    /*
     * weight and gradient [buckets, a], with the columns of this rank's heads; w.p is NULL without a relative bias.
     * Each layer adds to the gradient.
     */
    struct meg_mat w, dw;
    int64_t max_distance;
    bool is_bidirectional;
};

/* Configuration of the block types meg_attn_block and meg_cross_attn_block, with the sizes of the complete model. */
struct meg_attn_conf {
    /* options */
    int64_t a, g, d;                   /* query heads, key-value groups, head size */
    bool qk_layernorm;                 /* normalize each query and key head with RMSNorm (Qwen3) */
    double scale;                      /* of the scores; not above 0: 1 / sqrt(d) */
    double dropout;                    /* dropout probability of the attention weights */
    const char *window_size;           /* "L,R": see window; NULL: no window */
    const char *window_attn_skip_freq; /* the layers that have the window (model/layer_pattern.h); NULL: all */
    /* set by the description of the model */
    int rope;            /* index of the rotary tables in those of the model (struct meg_block_env) */
    int64_t window;      /* number of keys before its own position that a query attends to; 0: all */
    int64_t h;           /* width of the residual stream */
    double std, std_out; /* standard deviation of the initial weights of qkv and proj */
    bool has_qkv_bias, has_proj_bias;
    bool is_bidirectional; /* a query attends to all keys; otherwise, to keys up to its own position */
    int64_t buckets;       /* rows of the relative bias of the stack; 0: none */
    const struct meg_linear_variant *linear; /* of qkv and proj; NULL: dense */
};

/*
 * With a KV cache, the forward pass appends the keys and values of the rows to it, and computes attention over the
 * sequences in the cache.  The backward pass also computes the gradient of the relative bias.
 */
extern const struct meg_block_type meg_attn_block;

/* The structures of the type: weights, activations and their gradients. */
struct meg_attn {
    struct meg_linear qkv, proj;
    struct {
        void *w, *dw; /* [d] weight and its gradient, for all heads */
    } q_norm, k_norm;
    float qk_norm_eps; /* 0: queries and keys are not normalized */
    const struct meg_rope *rope;
    int64_t a, g, d;           /* query heads and key-value groups of this rank, head size */
    int64_t head0;             /* global index of this rank's first query head */
    int layer, layer_in_stack; /* index of the layer in the model and in its stack */
    double dropout;            /* dropout probability of the attention weights */
    float scale;
    int64_t window; /* as in struct meg_attn_conf */
    bool is_bidirectional;
    const struct meg_rel_bias *rel_bias;
    const struct meg_cp *cp;
    struct meg_attn_workspace workspace;
    bool recomputes_core; /* selective recomputation: layers share the buffers of o and lse; backward recomputes both */
};

/*
 * Activations kept for backward, or the gradients of qkv, o and what linear layers keep.  With all-to-all context
 * parallelism, qkv and lse have all rows of the all-to-all group, but only this rank's heads.
 */
struct meg_attn_acts {
    struct meg_mat qkv;     /* [n, (a+2g)d], after the norms of queries and keys and rotary positions */
    struct meg_mat qk;      /* [n, (a+g)d] queries and keys before these norms; not used without norms */
    float *q_rstd, *k_rstd; /* [n,a], [n,g] of the norms */
    struct meg_mat o;       /* [n, a d] */
    float *lse; /* log-sum-exp of the scores, [b,a,s]; with context parallelism [2,b,a,s/2], chunk by chunk */
    struct meg_mat qkv_kept, proj_kept; /* kept by the linear layers */
};

#endif
