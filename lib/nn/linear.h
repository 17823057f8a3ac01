/*
 * linear.h - column-parallel and row-parallel linear layers (Shoeybi et al. 2019, section 3).
 *
 * A column-parallel linear shards its weight w [out, in] along `out` over the tensor-parallel ranks; a row-parallel
 * linear shards its weight along `in`.  The input of a column-parallel linear and the output of a row-parallel linear
 * are rows of the residual stream, which sequence parallelism shards over the ranks (nn/sequence_parallel.h).
 *
 * The backward functions compute the gradients of the input, of w and, if column-parallel, of the bias.  With
 * c->defers_wgrad they compute only the gradient of the input; *_bwd_weight, called later with the same dy and x,
 * computes the others.
 */
#ifndef MEG_NN_LINEAR_H
#define MEG_NN_LINEAR_H
#include "nn/ctx.h"
#include "params/binder.h"

MEG_BEGIN_DECLS

struct meg_linear {
    /*
     * The shard [out, in] of this rank, and its gradient, whose p is NULL when not training.  For experts, both have
     * the shape [experts * out, in], one expert of this rank after the other.
     */
    struct meg_mat w, dw;
    void *bias;                   /* [out], or NULL */
    void *dbias;                  /* gradient of bias, or NULL */
    struct meg_linear_plan *plan; /* plan of the backend (linear_create) */
};

struct meg_linear_shape {
    int64_t out, in;
    int tp_dim;  /* 0: column-parallel, the bias is sharded; 1: row-parallel; -1: replicated */
    int nblocks; /* blocks along tp_dim that are sharded separately (struct meg_sharding); usually 1 */
    double std;  /* of the initial weights */
    bool has_bias;
    bool is_output; /* the output matrix of a language model, whose rows are the vocabulary */
    /* if not NULL, the weight is the word embedding of this name, which the embedding declares */
    const char *tied;
};

/* Declare the weight and the bias of a linear layer, name.weight and name.bias. */
void meg_bind_linear(struct meg_binder *b, struct meg_linear *l, const char *name,
                     const struct meg_linear_shape *shape);
/*
 * Declare the weights of the linear layers of all experts, each of this shape without a bias, and the plan that these
 * layers use.  The weights are one parameter, name.weight [experts, out, in], which expert-parallel ranks shard.
 */
void meg_bind_experts(struct meg_binder *b, struct meg_linear *l, const char *name, int64_t experts,
                      const struct meg_linear_shape *shape);

/* Compute y [n,out] = act(x w^T + bias).  Keep x w^T + bias in pre, unless pre.p is NULL or act is MEG_ACT_NONE. */
void meg_column_parallel_fwd(struct meg_ctx *c, struct meg_mat y, struct meg_mat pre, struct meg_mat x,
                             const struct meg_linear *l, enum meg_act act);
/*
 * Compute dx, reduced over tensor-parallel ranks, from dy [n,out].  Unless c->defers_wgrad, compute the gradients of w
 * and bias.
 */
void meg_column_parallel_bwd(struct meg_ctx *c, struct meg_mat dx, struct meg_mat dy, struct meg_mat x,
                             const struct meg_linear *l);
void meg_column_parallel_bwd_weight(struct meg_ctx *c, struct meg_mat dy, struct meg_mat x, const struct meg_linear *l);

/* Compute y = x [n,in] w^T, reduced over tensor-parallel ranks.  The bias is added by bias-dropout-add (nn/norm.h). */
void meg_row_parallel_fwd(struct meg_ctx *c, struct meg_mat y, struct meg_mat x, const struct meg_linear *l);
/*
 * Compute dx [n,in] = dy w * act'(pre), where x = act(pre) was the input.  Unless c->defers_wgrad, compute the gradient
 * of w.
 */
void meg_row_parallel_bwd(struct meg_ctx *c, struct meg_mat dx, struct meg_mat dy, struct meg_mat x,
                          const struct meg_linear *l, struct meg_mat pre, enum meg_act act);
void meg_row_parallel_bwd_weight(struct meg_ctx *c, struct meg_mat dy, struct meg_mat x, const struct meg_linear *l);

MEG_END_DECLS
#endif
