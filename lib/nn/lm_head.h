/*
 * The language-model head: logits = x w^T and the cross-entropy of each token, the vocabulary cut over
 * tensor-parallel ranks.  It works in chunks of rows, and turns a chunk's logits into their gradient at
 * once, so that [n,v] logits never exist.
 */
#ifndef MEG_NN_LM_HEAD_H
#define MEG_NN_LM_HEAD_H
#include "nn/linear.h"

MEG_BEGIN_DECLS

struct meg_lm_head {
    struct meg_linear_weights out; /* w [v,h]: rows v0 .. of the vocabulary; no bias */
    int64_t v0;
    struct meg_mat logits; /* [chunk,v], scratch */
    float *lse;            /* [chunk], scratch */
    float *partial_stats;  /* [tp,2,chunk], scratch */
};

/* Rows of a chunk for v columns here and at most n tokens: about 100 MB of logits. */
int64_t meg_lm_head_chunk_rows(int64_t v, int64_t n);

/* loss [n] f32 of all rows of x, rows of the residual stream, against target [n]. */
void meg_lm_head_loss(struct meg_ctx *c, float *loss, struct meg_mat x, const int32_t *target,
                      const struct meg_lm_head *l);

/* The same, and dx = gradient of sum(weight * loss), weight [n] f32; that of w is added to. */
void meg_lm_head_fwd_bwd(struct meg_ctx *c, float *loss, struct meg_mat dx, struct meg_mat x, const int32_t *target,
                         const float *weight, const struct meg_lm_head *l);

MEG_END_DECLS
#endif
