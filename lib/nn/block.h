/*
 * block.h - the residual block, the unit of which models are built (model/desc.h):
 *   x + drop(mixer(norm(x))),  optionally with another norm and a factor: x + drop(scale * post_norm(mixer(norm(x))))
 * The type of a block (struct meg_block_type) implements its mixer, such as attention or an MLP.  It has a table of
 * functions, and the sizes of the structures for the weights, the activations and the gradients of a block.  The
 * executor (model/forward_backward.c) passes these structures and the block's configuration to the functions; only the
 * functions access the members.
 */
#pragma once
#include "nn/linear.h"
#include "nn/norm.h"

struct meg_cp;
struct meg_rel_bias;
struct meg_rope;

/* The properties of the rank and of the model that a block uses besides its own configuration. */
struct meg_block_env {
    int64_t tp, tp_rank;                 /* tensor-parallel size and rank */
    int layer;                           /* global index of the layer, for dropout */
    int layer_in_stack;                  /* index of the layer in its stack, for the KV cache */
    const struct meg_cp *cp;             /* context parallelism of the layer */
    const struct meg_rope *rope;         /* rotary tables of the model, an array */
    const struct meg_rel_bias *rel_bias; /* of attention scores in the stack of the layer */
    const float *alibi_slope;            /* [heads of the rank] slopes of ALiBi, or NULL */
    double norm_eps;                     /* epsilon of the norms of the model */
    bool recomputes_core;                /* selective recomputation (enum meg_recompute) */
};

/* Memory of a block, by lifetime. */
enum meg_block_memory {
    MEG_BLOCK_ACTS,            /* activations from forward to backward; each micro-batch has its own */
    MEG_BLOCK_RECOMPUTED_ACTS, /* activations that backward recomputes (env.recomputes_core); all layers share them */
    MEG_BLOCK_GRADS,           /* gradients of activations, during the backward pass; all layers share them */
    MEG_BLOCK_DEFERRED_GRADS,  /* gradients of activations that bwd_weight reads; each micro-batch has its own */
    MEG_BLOCK_WORKSPACE        /* contents are not kept between calls; all layers share it */
};

/*
 * An arena for the buffers of a block or a head, and the parameters that determine their sizes: those of the largest
 * micro-batch.  If mem is NULL, the buffers exist, and the sizes are those of a micro-batch to which they are trimmed.
 */
struct meg_block_arena {
    struct meg_suballoc *mem;
    const struct meg_ops *op;
    int64_t n, s, b;       /* numbers of rows, positions and sequences */
    int64_t residual_rows; /* rows of the residual stream on this rank: n, with sequence parallelism n / tp */
    int64_t n_memory, s_memory, residual_rows_memory; /* of the encoder, if there are two stacks (struct meg_memory) */
    int64_t tp, tp_rank;                              /* tensor-parallel size and rank */
    int64_t ep, etp;                                  /* expert-parallel and expert tensor-parallel size */
    bool has_sp;                                      /* sequence parallelism */
    enum meg_dtype dtype;                             /* of activations */
    enum meg_dtype logits_dtype;
    bool is_training;
    bool defers_wgrad;       /* DEFERRED_GRADS are used; otherwise GRADS includes them */
    bool recomputes_core;    /* RECOMPUTED_ACTS are used; otherwise ACTS includes them */
    const struct meg_cp *cp; /* of the layer; NULL for heads */
};

/* Allocate the matrix *m [rows,cols] of activations or, if a->mem is NULL, set its number of rows. */
static inline void meg_block_mat(const struct meg_block_arena *a, struct meg_mat *m, int64_t rows, int64_t cols)
{
    if (a->mem)
        *m = meg_suballoc_mat(a->mem, a->dtype, rows, cols);
    m->rows = rows;
}

/* Allocate the matrix that a variant of linear layers keeps, for n rows of input (struct meg_linear_call). */
static inline void meg_block_kept(const struct meg_block_arena *a, struct meg_mat *m,
                                  const struct meg_linear_variant *v, int64_t n)
{
    if (v)
        meg_block_mat(a, m, n, v->kept);
}

/* Allocate the array *p of n elements, unless a->mem is NULL. */
static inline void meg_block_f32(const struct meg_block_arena *a, float **p, int64_t n)
{
    if (a->mem)
        *p = meg_suballoc(a->mem, (size_t)n * sizeof **p);
}

/*
 * What the KV cache stores of a sequence in a layer: elements for each of its tokens, and for each token of the
 * encoder's input.  All blocks of a model that store any have the same number.
 */
struct meg_block_cache {
    int64_t token, memory_token;
};

struct meg_block_type {
    size_t weights_size, acts_size, grads_size; /* sizes in bytes of the type's structures */
    /* Declare the parameters (params/binder.h).  In the step MEG_BIND_POINTERS, also set the weights' other fields. */
    void (*bind)(struct meg_binder *b, void *weights, const void *conf, const struct meg_block_env *env);
    /*
     * Allocate one class of memory; `to` is the weights for WORKSPACE, the activations or the gradients otherwise.
     * Buffers other than WORKSPACE are allocated by the functions above, and are trimmed to the micro-batch before a
     * pass, by a call without a->mem.
     */
    void (*suballoc)(enum meg_block_memory what, void *to, const struct meg_block_arena *a, const void *conf);
    /* Return the bias of the output, which is added together with the residual; NULL: there is none. */
    struct meg_residual_bias (*residual_bias)(const void *weights);
    /* Compute y [rows,h], without this bias, from x, the output of the norm.  x is not y. */
    void (*fwd)(struct meg_ctx *c, struct meg_mat y, struct meg_mat x, void *acts, const void *weights);
    /*
     * Compute dx from dy and, unless c->defers_wgrad, the weight gradients.  A block with a loss adds it to the sum of
     * the model and computes its gradients here; it is 0 in evaluations.
     */
    void (*bwd)(struct meg_ctx *c, struct meg_mat dx, struct meg_mat dy, struct meg_mat x, const void *acts,
                void *grads, const void *weights);
    /* Compute the weight gradients that bwd deferred (c->defers_wgrad). */
    void (*bwd_weight)(struct meg_ctx *c, struct meg_mat dy, struct meg_mat x, const void *acts, const void *grads,
                       const void *weights);
    /* Return what a layer stores while decoding; NULL: nothing. */
    struct meg_block_cache (*cache)(const void *conf, int64_t tp);
    /* Store the keys and values of the encoder's output, c->call.memory, in the KV cache of sequence 0. */
    void (*cache_memory)(struct meg_ctx *c, const void *weights);
};
