/*
 * attention.h - causal self-attention: qkv linear, rotary positions, attention over this rank's heads, output linear.
 * A row of qkv holds, for each key-value group, its r = a/g query heads, its key head and its value head, d columns
 * each.
 *
 * attention.c implements attention over complete sequences; cp_*.c add context parallelism (nn/cp_groups.h).
 */
#ifndef MEG_NN_ATTENTION_H
#define MEG_NN_ATTENTION_H
#include "nn/cp_groups.h"
#include "nn/linear.h"

MEG_BEGIN_DECLS

/* Tables of rotary position embedding, shared by all layers; half is 0 if the model has no rotary positions. */
struct meg_rope {
    float *cos, *sin; /* [positions, half] */
    int64_t half;     /* number of rotated column pairs per head */
    int is_interleaved;
};

struct meg_attn {
    struct meg_linear_weights qkv, proj;
    const struct meg_rope *rope;
    int64_t a, g, d; /* query heads and key-value groups of this rank, head size */
    int64_t head0;   /* global index of this rank's first query head */
    int layer;       /* global index of the layer */
    double dropout;  /* dropout probability of the attention weights */
    const struct meg_cp *cp;
    const struct meg_attn_workspace *workspace;
    bool recomputes_core; /* selective recomputation: backward recomputes o and lse, whose buffers the layers share */
};

/*
 * Activations kept for backward.  With all-to-all context parallelism, qkv and lse hold some of the heads for the rows
 * of all ranks in the all-to-all group.
 */
struct meg_attn_acts {
    struct meg_mat qkv; /* [n, (a+2g)d], after rotary positions */
    struct meg_mat o;   /* [n, a d] */
    float *lse;         /* log-sum-exp of the scores, [b,a,s]; with context parallelism [2,b,a,s/2], chunk by chunk */
};

/* Gradients of the activations. */
struct meg_attn_grads {
    struct meg_mat qkv, o; /* gradients, with the shapes of the activations */
    float *delta;          /* sum of d_o * o over the columns of each head, with the shape of lse */
};

/*
 * Compute y [n,h] from x without the output bias, which is added by bias-dropout-add (struct meg_residual_epilogue).
 * If c->kv is set, append the keys and values of the rows to the cache, and compute the attention of each row's queries
 * over its sequence in the cache.
 */
void meg_attn_fwd(struct meg_ctx *c, struct meg_mat y, struct meg_mat x, struct meg_attn_acts *a,
                  const struct meg_attn *l);
/* Compute dx from dy and, unless c->defers_wgrad, add to the weight gradients; d is overwritten. */
void meg_attn_bwd(struct meg_ctx *c, struct meg_mat dx, struct meg_mat dy, struct meg_mat x,
                  const struct meg_attn_acts *a, struct meg_attn_grads *d, const struct meg_attn *l);
/* Add the weight gradients that meg_attn_bwd deferred (c->defers_wgrad); pass the same arguments as to meg_attn_bwd. */
void meg_attn_bwd_weight(struct meg_ctx *c, struct meg_mat dy, struct meg_mat x, const struct meg_attn_acts *a,
                         const struct meg_attn_grads *d, const struct meg_attn *l);

MEG_END_DECLS
#endif
