/*
 * lm_head.h - language-model head: logits = x w^T + bias, and the cross-entropy of each token.  BERT's head first
 * transforms x, and the heads of T5 v1.0, Granite and Cohere scale x:
 *   x' = LayerNorm(GELU(dense(x))), or x' = scale * x
 * The head of Gemma 2 caps the logits.
 *
 * The vocabulary is split over tensor-parallel ranks.  Rows are processed in chunks, and only the logits of one chunk
 * are stored at a time (logits_rows in tensor/ops.h): the gradient of the logits overwrites the logits.  A chunk has at
 * least the rows of a decoding step (decode_rows), unless all micro-batches have fewer rows.
 */
#pragma once
#include "nn/head.h"

/* Configuration of the head type meg_lm_head. */
struct meg_lm_head_conf {
    int64_t h, v;        /* width of the residual stream, number of tokens in the vocabulary */
    const char *tied;    /* name of the word embedding, whose matrix is w; NULL: w is output_layer.weight */
    bool has_bias;       /* output_layer.bias */
    bool is_transformed; /* x is transformed; the parameters are lm_head.dense and lm_head.layer_norm */
    enum meg_act act;    /* of the transform */
    float scale;         /* factor of x, without the transform; 0: none */
    float softcap;       /* cap of the logits: softcap * tanh(logit / softcap) (Gemma 2); 0: none */
    double std;          /* of the initial weights */
    double norm_eps;
};

extern const struct meg_head_type meg_lm_head;

/* Weights and workspace of the head type meg_lm_head. */
struct meg_lm_head_weights {
    struct meg_linear out; /* w [v,h], bias [v]: rows v0, v0 + 1, ... of the vocabulary */
    int64_t v0;
    struct meg_mat logits; /* [chunk,v], workspace */
    float *lse;            /* [chunk], workspace */
    float *partial_stats;  /* [tp,2,chunk], workspace: log-sum-exp and target logit, computed by each rank */
    float scale;           /* if it is not 0, x' = scale * x is stored in y */
    float softcap;
    bool is_transformed; /* x is transformed; the following fields are used */
    enum meg_act activation;
    struct meg_linear dense;
    struct meg_norm_weights norm;
    struct meg_norm_stats stats;
    struct meg_mat pre, act, y; /* [residual rows,h], workspace: dense(x), GELU(dense(x)), x' */
    struct meg_mat d_y;         /* [residual rows,h], workspace: gradient of x' */
};

/* Return the input of the output matrix: x itself, or x' in the workspace of the head. */
struct meg_mat meg_lm_head_transform(struct meg_ctx *c, const struct meg_lm_head_weights *l, struct meg_mat x);
/* Compute and return the logits [rows,v] of at most one chunk of rows of the output of meg_lm_head_transform. */
struct meg_mat meg_lm_head_logits(struct meg_ctx *c, const struct meg_lm_head_weights *l, struct meg_mat x);
