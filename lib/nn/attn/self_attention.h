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
 * With qk_layernorm, queries and keys are normalized before or after rotary positions (Dehghani et al. 2023; Qwen3), as
 * qk_norm_scope says.  Tensor-parallel ranks have the same weights of norms of single heads, but different heads.
 *
 * self_attention.c implements attention over complete sequences; cp_*.c add context parallelism (cp_groups.h).
 */
#pragma once
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

/* Type of the softmax of attention scores (Megatron's --softmax-type); see the sinks of struct meg_attn_desc. */
enum meg_softmax_type {
    MEG_SOFTMAX_VANILLA,    /* no sink */
    MEG_SOFTMAX_OFF_BY_ONE, /* a sink of 0: the denominator is 1 + the sum of the exponentials */
    MEG_SOFTMAX_LEARNABLE   /* one trained sink for each head (GPT-OSS) */
};

/* What a norm of queries or keys normalizes, and its weights.  Only MEG_QK_NORM_PER_HEAD_WEIGHT never has a bias. */
enum meg_qk_norm_scope {
    MEG_QK_NORM_HEAD,            /* each head, with one weight [d] for all heads (Qwen3) */
    MEG_QK_NORM_PER_HEAD_WEIGHT, /* each head, with a weight [d] of the head (Command R+, StableLM 2 12B) */
    MEG_QK_NORM_WIDTH            /* all heads of a token together, with one weight [heads * d] (OLMo 2) */
};

/* Configuration of the block types meg_attn_block and meg_cross_attn_block, with the sizes of the complete model. */
struct meg_attn_conf {
    /* options */
    int64_t a, g, d;   /* query heads, key-value groups, head size */
    bool qk_layernorm; /* normalize queries and keys */
    enum meg_qk_norm_scope qk_norm_scope;
    bool qk_norm_after_rope; /* after rotary positions (Hunyuan) */
    double scale;            /* of the scores; not above 0: 1 / sqrt(d) */
    double softcap;          /* of the scores (struct meg_attn_desc); not above 0: none */
    enum meg_softmax_type softmax_type;
    double clip;                       /* limit of the elements of queries, keys and values (MPT); not above 0: none */
    double dropout;                    /* dropout probability of the attention weights */
    const char *window_size;           /* "L,R": see window; NULL: no window */
    const char *window_attn_skip_freq; /* the layers that have the window (model/layer_pattern.h); NULL: all */
    /* set by the description of the model */
    int rope;            /* index of the rotary tables in those of the model (struct meg_block_env) */
    int64_t window;      /* number of keys before its own position that a query attends to; 0: all */
    int64_t h;           /* width of the residual stream */
    enum meg_norm norm;  /* type of the norms of queries and keys */
    bool norm_has_bias;  /* of these norms */
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
    bool has_qk_norm, qk_norm_after_rope;
    enum meg_qk_norm_scope qk_norm_scope;
    struct meg_norm_weights q_norm, k_norm;
    struct meg_mat qk_norm_rows[2]; /* [n, a d] workspace: the heads, or their gradients after and before the norm */
    enum meg_softmax_type softmax_type;
    struct {
        void *w, *dw; /* [a] sinks of MEG_SOFTMAX_LEARNABLE and their gradient */
    } sink;
    const float *alibi_slope; /* [a] slopes of this rank's heads (struct meg_attn_desc), or NULL */
    const struct meg_rope *rope;
    int64_t a, g, d;            /* query heads and key-value groups of this rank, head size */
    int64_t head0;              /* global index of this rank's first query head */
    int layer, layer_in_stack;  /* index of the layer in the model and in its stack */
    double dropout;             /* dropout probability of the attention weights */
    float scale, softcap, clip; /* softcap and clip: 0: none */
    int64_t window;             /* as in struct meg_attn_conf */
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
    struct meg_mat qkv;       /* [n, (a+2g)d], after the norms of queries and keys and rotary positions */
    struct meg_mat unclipped; /* [n, (a+2g)d] output of the qkv linear before clipping; not used without clipping */
    struct meg_mat q, k;      /* [n, a d], [n, g d] queries and keys before these norms; not used without norms */
    struct meg_norm_stats q_stats, k_stats; /* of the norms, [n, a] and [n, g] */
    struct meg_mat o;                       /* [n, a d] */
    float *lse; /* log-sum-exp of the scores, [b,a,s]; with context parallelism [2,b,a,s/2], chunk by chunk */
    struct meg_mat qkv_kept, proj_kept; /* kept by the linear layers */
};
