/*
 * Causal self-attention: qkv linear, rotary positions, attention over this rank's heads, output linear.  A row of
 * qkv holds, for each key-value group, its r query heads, its key head and its value head, d columns each.
 */
#ifndef MEG_NN_ATTENTION_H
#define MEG_NN_ATTENTION_H
#include "nn/cp_groups.h"
#include "nn/linear.h"

MEG_BEGIN_DECLS

/* Tables of rotary positions, shared by all layers; half 0: the model has none. */
struct meg_rope {
    float *cos, *sin; /* [positions, half] */
    int64_t half;
    int is_interleaved;
};

struct meg_attn {
    struct meg_linear_weights qkv, proj;
    const struct meg_rope *rope;
    int64_t a, g, d; /* heads and groups of this rank, head size */
    int64_t head0;   /* global number of its first head */
    int layer;
    double dropout;          /* of the probabilities */
    const struct meg_cp *cp; /* the ranks that share its sequences */
    const struct meg_attn_workspace *workspace;
    bool recomputes_core; /* backward computes the output again: activations have one for all layers */
};

/* Where ranks exchange heads, qkv and lse are those of all rows and some heads. */
struct meg_attn_acts {
    struct meg_mat qkv; /* [n, (a+2g)d], turned by positions */
    struct meg_mat o;   /* [n, a d] */
    float *lse;         /* [b,a,s]; where ranks share sequences, that of either piece: [2,b,a,s/2] */
};

/* Scratch of the backward pass, shared by all layers. */
struct meg_attn_grads {
    struct meg_mat qkv, o; /* as in the activations */
    float *delta;          /* as lse */
};

/*
 * y [n,h] without the output bias, which the residual adds.  With c->kv the rows' keys and values go
 * into the cache, and each row attends to what its sequence holds there.
 */
void meg_attn_fwd(struct meg_ctx *c, struct meg_mat y, struct meg_mat x, struct meg_attn_acts *a,
                  const struct meg_attn *l);
void meg_attn_bwd(struct meg_ctx *c, struct meg_mat dx, struct meg_mat dy, struct meg_mat x,
                  const struct meg_attn_acts *a, struct meg_attn_grads *d, const struct meg_attn *l);
/* The gradients of the weights that meg_attn_bwd left, from what it was given. */
void meg_attn_bwd_weight(struct meg_ctx *c, struct meg_mat dy, struct meg_mat x, const struct meg_attn_acts *a,
                         const struct meg_attn_grads *d, const struct meg_attn *l);

MEG_END_DECLS
#endif
