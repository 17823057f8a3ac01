/*
 * binder.h - declare the parameters of layers.  Each type of layer has one function that declares its parameters by the
 * functions below.  The model calls it once for each step:
 *
 *   MEG_BIND_ROWS      append rows to the parameter table; the weights may be temporary
 *   MEG_BIND_PLANS     create the plans of linear layers in the weights
 *   MEG_BIND_POINTERS  point the same weights to the flat buffers
 *   MEG_BIND_DESTROY   destroy the plans
 */
#ifndef MEG_NN_BINDER_H
#define MEG_NN_BINDER_H
#include "nn/linear.h"
#include "nn/norm.h"
#include "nn/param.h"

MEG_BEGIN_DECLS

enum meg_bind_step { MEG_BIND_ROWS, MEG_BIND_PLANS, MEG_BIND_POINTERS, MEG_BIND_DESTROY };

struct meg_binder {
    enum meg_bind_step step;
    struct meg_params *params;
    char prefix[48];           /* of the names of all parameters; set by the model for each layer */
    int layer_group;           /* of the parameters that are declared */
    enum meg_init_method init; /* of weight matrices: MEG_INIT_NORMAL or MEG_INIT_XAVIER */

    /* MEG_BIND_PLANS and MEG_BIND_DESTROY */
    const struct meg_ops *op;
    int64_t n; /* maximum number of rows of a micro-batch */
    enum meg_dtype dtype, grad_dtype;
    enum meg_dtype logits_dtype; /* of the output of a layer with is_output */
    int status;                  /* 0, or MEG_EUSAGE if the backend does not support a linear layer */
    struct meg_err *err;         /* set with status */

    /* MEG_BIND_POINTERS: the buffers of struct meg_model, and whether they are the unsharded buffers of ZeRO-2/3 */
    void *w, *g;
    bool is_w_layerwise, is_g_layerwise;
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
void meg_bind_linear(struct meg_binder *b, struct meg_linear_weights *l, const char *name,
                     const struct meg_linear_shape *shape);
/*
 * Declare the weights of the linear layers of all experts, each of this shape without a bias, and the plan that these
 * layers use.  The weights are one parameter, name.weight [experts, out, in], which expert-parallel ranks shard.
 */
void meg_bind_experts(struct meg_binder *b, struct meg_linear_weights *l, const char *name, int64_t experts,
                      const struct meg_linear_shape *shape);
/* Declare the weight of a norm of width h and, unless it is an RMSNorm, the bias.  The caller sets l->type and eps. */
void meg_bind_norm(struct meg_binder *b, struct meg_norm_weights *l, const char *name, int64_t h);
/*
 * Declare a matrix [rows, cols] that is not the weight of a linear layer, such as an embedding.  Tensor-parallel ranks
 * shard dimension tp_dim, or replicate the matrix if tp_dim is -1.  In the step MEG_BIND_ROWS, return its new row in
 * the parameter table, so that the caller can change fields.  In other steps, return NULL.
 */
struct meg_param *meg_bind_matrix(struct meg_binder *b, struct meg_mat *w, struct meg_mat *dw, const char *name,
                                  int64_t rows, int64_t cols, int tp_dim, double std);

MEG_END_DECLS
#endif
