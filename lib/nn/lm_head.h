/*
 * lm_head.h - language-model head: logits = x w^T and the cross-entropy of each token.
 *
 * The vocabulary is split over tensor-parallel ranks.  Rows are processed in chunks, and only the logits of one chunk
 * are stored at a time (logits_rows in tensor/ops.h): the gradient of the logits overwrites the logits.
 */
#ifndef MEG_NN_LM_HEAD_H
#define MEG_NN_LM_HEAD_H
#include "nn/linear.h"

MEG_BEGIN_DECLS

struct meg_lm_head {
    struct meg_linear_weights out; /* w [v,h]: rows v0, v0 + 1, ... of the vocabulary; no bias */
    int64_t v0;
    struct meg_mat logits; /* [chunk,v], workspace */
    float *lse;            /* [chunk], workspace */
    float *partial_stats;  /* [tp,2,chunk], workspace: log-sum-exp and target logit, computed by each rank */
};

/*
 * Compute the loss [n] f32 of all rows for the target ids [n].  x has this rank's rows of the output of the final norm.
 */
void meg_lm_head_loss(struct meg_ctx *c, float *loss, struct meg_mat x, const int32_t *target,
                      const struct meg_lm_head *l);

/*
 * Compute `loss` as meg_lm_head_loss does, and the gradients of sum(weight * loss): dx, the gradient of x, and out.dw.
 */
void meg_lm_head_fwd_bwd(struct meg_ctx *c, float *loss, struct meg_mat dx, struct meg_mat x, const int32_t *target,
                         struct meg_loss_weight weight, const struct meg_lm_head *l);

MEG_END_DECLS
#endif
