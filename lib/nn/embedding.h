/* Token and learned position embedding, the vocabulary cut over tensor-parallel ranks. */
#ifndef MEG_NN_EMBEDDING_H
#define MEG_NN_EMBEDDING_H
#include "nn/ctx.h"

MEG_BEGIN_DECLS

struct meg_embed {
    struct meg_mat word, dword; /* [v,h]: rows v0 .. of the vocabulary */
    struct meg_mat pos, dpos;   /* [positions,h] */
    int64_t v0;
    double dropout;
};

/* x: rows of the residual stream; token, position [n] i32 of all rows, device. */
void meg_embed_fwd(struct meg_ctx *c, struct meg_mat x, const int32_t *token, const int32_t *position,
                   const struct meg_embed *l);
/* dx is used up. */
void meg_embed_bwd(struct meg_ctx *c, struct meg_mat dx, const int32_t *token, const int32_t *position,
                   const struct meg_embed *l);

MEG_END_DECLS
#endif
