/*
 * embedding.h - token embedding, and learned embeddings of positions and token types; the vocabulary is split over
 * tensor-parallel ranks.
 */
#pragma once
#include "nn/norm.h"

struct meg_embed {
    /* weights and gradients, whose p is NULL if they are frozen */
    struct meg_mat word, dword;   /* [v,h]: rows v0, v0 + 1, ... of the vocabulary */
    struct meg_mat pos, dpos;     /* [positions,h]; p is NULL without learned positions */
    int64_t first_position;       /* row of pos of position 0 */
    float multiplier;             /* of the word embedding */
    struct meg_norm_weights norm; /* of the word embedding after this factor, if there are buffers for it */
    struct meg_mat types, dtypes; /* [2,h] of token types (BERT); p is NULL without them */
    int64_t v0;
    bool is_tied; /* dword already contains the gradient of this rank's LM head; backward adds to it */
    double dropout;
};

/* The ids of all rows of a micro-batch, in device memory; token_types may be NULL. */
struct meg_embed_ids {
    const int32_t *tokens, *position_ids, *token_types;
    int64_t layer; /* global index of the layer that follows, for dropout */
};

/* Buffers of the norm of the word embedding, [rows,h]; words.p is NULL if there is no norm. */
struct meg_embed_norm {
    struct meg_mat words; /* input of the norm, kept for backward */
    struct meg_norm_stats stats;
    struct meg_mat y; /* workspace: output of the norm, or its gradient */
};

/* Compute x, this rank's rows of the residual stream: drop(norm(multiplier * word) + types + pos). */
void meg_embed_fwd(struct meg_ctx *c, struct meg_mat x, const struct meg_embed_ids *in, struct meg_embed_norm *norm,
                   const struct meg_embed *l);
/* Compute the gradients of the parameters, given dx, the gradient of x.  dx is overwritten. */
void meg_embed_bwd(struct meg_ctx *c, struct meg_mat dx, const struct meg_embed_ids *in,
                   const struct meg_embed_norm *norm, const struct meg_embed *l);
