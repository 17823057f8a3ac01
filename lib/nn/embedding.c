#include "nn/embedding.h"

void meg_embed_fwd(struct meg_ctx *c, struct meg_mat x, const int32_t *token, const int32_t *position,
                   const struct meg_embed *l)
{
    const struct meg_drop drop = meg_ctx_drop(c, l->dropout, 0, MEG_DROP_EMBED);

    c->op->embed_fwd(c->st, x, token, l->word, l->v0);
    c->op->position_fwd(c->st, x, position, l->pos, &drop);
}

void meg_embed_bwd(struct meg_ctx *c, struct meg_mat dx, const int32_t *token, const int32_t *position,
                   const struct meg_embed *l)
{
    const struct meg_drop drop = meg_ctx_drop(c, l->dropout, 0, MEG_DROP_EMBED);

    c->op->position_bwd(c->st, l->dpos, dx, position, &drop);
    c->op->embed_bwd(c->st, l->dword, l->v0, dx, token);
}
