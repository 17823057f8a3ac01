/*
 * binder.h - declare the parameters of layers.  Each type of layer has one function that declares its parameters by
 * the functions below and those of the layers that it consists of (meg_bind_linear, meg_bind_norm).  The model calls
 * it once for each step:
 *
 *   MEG_BIND_ROWS      append rows to the parameter table; the weights may be temporary
 *   MEG_BIND_PLANS     create the plans of linear layers, and what their variants own, in the weights
 *   MEG_BIND_POINTERS  point the same weights to the flat buffers
 *   MEG_BIND_DESTROY   destroy both
 */
#pragma once
#include "params/param.h"
#include "tensor/suballoc.h"

enum meg_bind_step { MEG_BIND_ROWS, MEG_BIND_PLANS, MEG_BIND_POINTERS, MEG_BIND_DESTROY };

struct meg_binder {
    enum meg_bind_step step;
    struct meg_params *params;
    char prefix[48];   /* of the names of all parameters; set by the model for each layer */
    int layer_group;   /* of the parameters that are declared */
    meg_init_fn *init; /* of weight matrices: meg_init_normal or meg_init_xavier */

    /* MEG_BIND_PLANS and MEG_BIND_DESTROY */
    const struct meg_ops *op;
    int64_t n; /* maximum number of rows of a micro-batch */
    enum meg_dtype dtype, grad_dtype;
    enum meg_dtype logits_dtype; /* of the output of a layer with is_output */
    int status;                  /* 0, or MEG_EUSAGE if the backend does not support a linear layer */
    struct meg_err *err;         /* set with status */

    /* MEG_BIND_POINTERS: the buffers of struct meg_model, and whether they are the unsharded buffers of ZeRO-2/3 */
    void *w, *g;
    bool is_w_layerwise;
};

/* The shape of a weight matrix, or of a stack of matrices of equal shape. */
struct meg_matrix_shape {
    int64_t experts; /* number of matrices, which expert-parallel ranks shard; 0: one matrix */
    int64_t rows, cols;
    int tp_dim; /* dimension of a matrix that (expert) tensor-parallel ranks shard; -1: they replicate it */
    int nparts; /* equal parts along tp_dim, usually 1; not used if `parts` is given */
    double std; /* of the initial weights */
    const struct meg_sharding *parts; /* along tp_dim, instead of equal ones; NULL: equal */
};

/* The name of a parameter, without the prefix of the layer. */
struct meg_param_name {
    char s[96];
};
struct meg_param_name meg_param_name(const char *name, const char *suffix);

/*
 * Declare the parameter b->prefix + name: a matrix [rows, cols], or matrices [experts, rows, cols].  In the step
 * MEG_BIND_ROWS, return its new row in the parameter table, so that the caller can change fields.  In other steps,
 * return NULL.  MEG_BIND_POINTERS sets *w to this rank's shard, with the matrices of its experts one after the other,
 * and *dw to the gradient of this shard, whose p is NULL when not training and if the parameter is frozen.
 */
struct meg_param *meg_bind_matrix(struct meg_binder *b, struct meg_mat *w, struct meg_mat *dw, const char *name,
                                  const struct meg_matrix_shape *shape);
/* Set *w and *dw to a matrix that another call declared, such as a tied embedding, as meg_bind_matrix does. */
void meg_bind_tied_matrix(const struct meg_binder *b, struct meg_mat *w, struct meg_mat *dw, const char *name);
/* Declare a vector [n], initially filled with `value`, which ranks replicate unless the caller shards the new row. */
struct meg_param *meg_bind_vector(struct meg_binder *b, void **w, void **dw, const char *name, int64_t n, double value);
/* Return the row of the parameter b->prefix + name, of which this rank has a shard.  Call it after MEG_BIND_ROWS. */
const struct meg_param *meg_bind_row(const struct meg_binder *b, const char *name);
