/*
 * linear.h - linear layers, which tensor parallelism shards by columns or by rows (Shoeybi et al. 2019, section 3).
 *
 * A column-parallel linear shards its weight w [out, in] along `out` over the tensor-parallel ranks; a row-parallel
 * linear shards its weight along `in`.  The input of a column-parallel linear and the output of a row-parallel linear
 * are rows of the residual stream, which sequence parallelism shards over the ranks (nn/sequence_parallel.h).
 *
 * The product and the parameters of a layer are those of a variant: dense, or another one that the configuration of a
 * block names.  Blocks do not know the variants; they only pass the matrices that a variant keeps for backward.
 */
#pragma once
#include "nn/ctx.h"
#include "params/binder.h"

/* A variant of linear layers; the first member of its configuration. */
struct meg_linear_variant {
    const struct meg_linear_type *type;
    int64_t kept; /* columns of the matrix that the layer keeps from forward to backward, and of its gradient */
};

struct meg_linear {
    const struct meg_linear_type *type;
    int tp_dim;     /* 0: column-parallel, 1: row-parallel, -1: replicated */
    bool is_frozen; /* no gradients of parameters are computed; set in the step MEG_BIND_POINTERS */
    /*
     * The shard [out, in] of this rank, and its gradient, whose p is NULL if it has none.  For experts, both have the
     * shape [experts * out, in], one expert of this rank after the other.
     */
    struct meg_mat w, dw;
    void *bias;                   /* [out], or NULL */
    void *dbias;                  /* gradient of bias, or NULL */
    struct meg_linear_plan *plan; /* plan of the backend (linear_create) */
    void *own;                    /* of the variant, from MEG_BIND_PLANS to MEG_BIND_DESTROY */
};

struct meg_linear_shape {
    int64_t out, in;
    int tp_dim; /* 0: column-parallel, the bias is sharded; 1: row-parallel; -1: replicated */
    int nparts; /* equal parts along tp_dim, usually 1; not used if `parts` is given */
    double std; /* of the initial weights */
    bool has_bias;
    bool is_frozen;                   /* weight and bias are not trained */
    bool is_f32;                      /* weight and bias are in f32, and so are input and output */
    bool is_output;                   /* the output matrix of a language model, whose rows are the vocabulary */
    const struct meg_sharding *parts; /* along tp_dim, instead of equal ones; NULL: equal */
    /* if not NULL, the weight is the word embedding of this name, which the embedding declares */
    const char *tied;
    const struct meg_linear_variant *variant; /* NULL: dense */
};

/* Declare the weight and the bias of a linear layer, name.weight and name.bias. */
void meg_bind_linear(struct meg_binder *b, struct meg_linear *l, const char *name,
                     const struct meg_linear_shape *shape);
/*
 * Declare the weights of the linear layers of all experts, each of this shape without a bias, and the plan that these
 * layers use.  The weights are one parameter, name.weight [experts, out, in].  Expert-parallel ranks shard the experts,
 * and expert tensor-parallel ranks the dimension tp_dim of each expert.
 */
void meg_bind_experts(struct meg_binder *b, struct meg_linear *l, const char *name, int64_t experts,
                      const struct meg_linear_shape *shape);

/* The arguments of the following functions, which do not use all of them. */
struct meg_linear_call {
    struct meg_mat y, x;   /* output [n,out], input [n,in] */
    struct meg_mat dy, dx; /* their gradients */
    /* [n,out] in the forward pass, [n,in] in the backward pass: the input of act */
    struct meg_mat pre;
    enum meg_act act;
    struct meg_mat kept, d_kept; /* [rows,kept] written by fwd, and by bwd (meg_block_kept); dense: not used */
    bool accumulate;             /* add to y, or to pre if it is written; add to dx: for the variants themselves */
};

/* The functions of a variant.  The products have all rows of their operands, and compute this rank's partial sums. */
struct meg_linear_type {
    void (*bind)(struct meg_binder *b, struct meg_linear *l, const char *name, const struct meg_linear_shape *shape);
    void (*fwd)(struct meg_ctx *c, const struct meg_linear *l, const struct meg_linear_call *a);
    void (*bwd_data)(struct meg_ctx *c, const struct meg_linear *l, const struct meg_linear_call *a);
    void (*bwd_weight)(struct meg_ctx *c, const struct meg_linear *l, const struct meg_linear_call *a);
};
extern const struct meg_linear_type meg_linear_dense;

/* Call meg_linear_fwd, meg_linear_bwd, ...: MEG_LINEAR(c, &l->fc1, fwd, .y = y, .x = x). */
#define MEG_LINEAR(c, l, function, ...) meg_linear_##function(c, l, &(struct meg_linear_call){ __VA_ARGS__ })

/*
 * Compute y = act(x w^T + bias), for a row-parallel linear without the bias and reduced over the tensor-parallel ranks.
 * Keep x w^T + bias in pre, unless pre.p is NULL or act is MEG_ACT_NONE.
 */
void meg_linear_fwd(struct meg_ctx *c, const struct meg_linear *l, const struct meg_linear_call *a);
/*
 * Compute dx = dy w * act'(pre), where x = act(pre); for a column-parallel linear, reduced over the tensor-parallel
 * ranks.  Unless c->defers_wgrad, compute the gradients of w and, if the linear is not row-parallel, of bias.
 */
void meg_linear_bwd(struct meg_ctx *c, const struct meg_linear *l, const struct meg_linear_call *a);
/* Compute the gradients of w and bias that meg_linear_bwd deferred. */
void meg_linear_bwd_weight(struct meg_ctx *c, const struct meg_linear *l, const struct meg_linear_call *a);

/*
 * Compute y, or dx and the gradients of w and bias, without communication: x, or dy and x, have all rows, and the
 * result is this rank's partial sum.
 */
void meg_linear_local_fwd(struct meg_ctx *c, const struct meg_linear *l, const struct meg_linear_call *a);
void meg_linear_local_bwd(struct meg_ctx *c, const struct meg_linear *l, const struct meg_linear_call *a);
