/* embedding.h - token and learned position embedding; the vocabulary is split over tensor-parallel ranks. */
#ifndef MEG_NN_EMBEDDING_H
#define MEG_NN_EMBEDDING_H
#include "nn/ctx.h"

MEG_BEGIN_DECLS

struct meg_embed {
    struct meg_mat word, dword; /* weight and gradient [v,h]: rows v0, v0 + 1, ... of the vocabulary */
    struct meg_mat pos, dpos;   /* weight and gradient [positions,h]; pos.p and dpos.p are NULL with rotary positions */
    int64_t v0;
    bool is_tied; /* the backward pass of this rank's LM head has already computed a part of dword; add to it */
    double dropout;
};

/* Compute x, this rank's rows of the residual stream, from token [n] and position [n] (i32 device) of all rows. */
void meg_embed_fwd(struct meg_ctx *c, struct meg_mat x, const int32_t *token, const int32_t *position,
                   const struct meg_embed *l);
/* Compute the gradients of word and pos, given dx, the gradient of x.  dx is multiplied by the dropout factors. */
void meg_embed_bwd(struct meg_ctx *c, struct meg_mat dx, const int32_t *token, const int32_t *position,
                   const struct meg_embed *l);

MEG_END_DECLS
#endif
