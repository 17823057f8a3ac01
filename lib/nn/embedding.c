/* embedding.c - token and learned position embedding. */
#include "nn/embedding.h"
#include "nn/sequence_parallel.h"

static const struct meg_drop none;

void meg_embed_fwd(struct meg_ctx *c, struct meg_mat x, const struct meg_embed_ids *in, const struct meg_embed *l)
{
    const struct meg_drop drop = meg_ctx_drop(c, l->dropout, in->layer, MEG_DROP_EMBED);
    const struct meg_mat partial = meg_sp_partial_sum(c, x);

    c->op->embed_fwd(c->stream, partial, in->tokens, l->word, l->v0);
    meg_sp_reduce(c, x, partial);
    if (l->types.p)
        c->op->position_fwd(c->stream, x, in->token_types + meg_sp_first_row(c, x), l->types, &none);
    c->op->position_fwd(c->stream, x, in->position_ids + meg_sp_first_row(c, x), l->pos, &drop);
}

void meg_embed_bwd(struct meg_ctx *c, struct meg_mat dx, const struct meg_embed_ids *in, const struct meg_embed *l)
{
    const struct meg_drop drop = meg_ctx_drop(c, l->dropout, in->layer, MEG_DROP_EMBED);

    c->op->position_bwd(c->stream, l->dpos, dx, in->position_ids + meg_sp_first_row(c, dx), &drop,
                        c->accumulates_grads);
    if (l->types.p)
        c->op->position_bwd(c->stream, l->dtypes, dx, in->token_types + meg_sp_first_row(c, dx), &none,
                            c->accumulates_grads);
    c->op->embed_bwd(c->stream, l->dword, l->v0, meg_sp_gather(c, dx), in->tokens, c->accumulates_grads || l->is_tied);
}
