/*
 * attention.h - causal self-attention: qkv linear, rotary positions, attention over this rank's heads, output linear.
 * A row of qkv holds, for each key-value group, its r = a/g query heads, its key head and its value head, d columns
 * each.
 *
 * attention.c is attention of complete sequences; cp_*.c add context parallelism (nn/cp_groups.h).
 */
#ifndef MEG_NN_ATTENTION_H
#define MEG_NN_ATTENTION_H
#include "nn/cp_groups.h"
#include "nn/linear.h"

MEG_BEGIN_DECLS

/* Rotary tables, shared by all layers; half 0: the model has no rotary positions. */
struct meg_rope {
    float *cos, *sin; /* [positions, half] */
    int64_t half;     /* column pairs of a head that are rotated */
    int is_interleaved;
};

struct meg_attn {
    struct meg_linear_weights qkv, proj;
    const struct meg_rope *rope;
    int64_t a, g, d; /* query heads and key-value groups of this rank, head size */
    int64_t head0;   /* global index of its first query head */
    int layer;       /* global index of the layer */
    double dropout;  /* of the attention probabilities */
    const struct meg_cp *cp;
    const struct meg_attn_workspace *workspace;
    bool recomputes_core; /* selective recomputation: backward recomputes o and lse, whose buffers all layers share */
};

/*
 * Activations kept for backward.  With all-to-all context parallelism, qkv and lse are those of the rows of all ranks
 * of the group and of some heads.
 */
struct meg_attn_acts {
    struct meg_mat qkv; /* [n, (a+2g)d], after rotary positions */
    struct meg_mat o;   /* [n, a d] */
    float *lse;         /* [b,a,s]; with context parallelism that of one chunk after the other: [2,b,a,s/2] */
};

/* Gradients of the activations. */
struct meg_attn_grads {
    struct meg_mat qkv, o; /* shaped as the activations */
    float *delta;          /* shaped as lse: sum of d_o * o over each head */
};

/*
 * Compute y [n,h] from x without the output bias, which the residual epilogue adds.  If c->kv is set, append the keys
 * and values of the rows to the cache and attend each row to its sequence in the cache.
 */
void meg_attn_fwd(struct meg_ctx *c, struct meg_mat y, struct meg_mat x, struct meg_attn_acts *a,
                  const struct meg_attn *l);
/* Compute dx from dy and add to the weight gradients; d is overwritten. */
void meg_attn_bwd(struct meg_ctx *c, struct meg_mat dx, struct meg_mat dy, struct meg_mat x,
                  const struct meg_attn_acts *a, struct meg_attn_grads *d, const struct meg_attn *l);
/* Add the weight gradients that meg_attn_bwd deferred (c->defers_wgrad); the arguments are those of that call. */
void meg_attn_bwd_weight(struct meg_ctx *c, struct meg_mat dy, struct meg_mat x, const struct meg_attn_acts *a,
                         const struct meg_attn_grads *d, const struct meg_attn *l);

MEG_END_DECLS
#endif
