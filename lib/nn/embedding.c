/* embedding.c - token and learned position embedding. */
#include "nn/embedding.h"
#include "nn/sequence_parallel.h"

static const struct meg_drop none;

void meg_embed_fwd(struct meg_ctx *c, struct meg_mat x, const struct meg_embed_ids *in, const struct meg_embed *l)
{
    const struct meg_drop drop = meg_ctx_drop(c, l->dropout, (int)in->layer, MEG_DROP_EMBED);
    const struct meg_mat partial = meg_sp_partial_sum(c, x);

    MEG_CALL(c->op, c->stream, embed_fwd, .x = partial, .token = in->tokens, .word = l->word, .v0 = l->v0);
    meg_sp_reduce(c, x, partial);
    if (l->types.p)
        MEG_CALL(c->op, c->stream, position_fwd, .x = x, .position = in->token_types + meg_sp_first_row(c, x),
                 .pos = l->types, .drop = &none);
    MEG_CALL(c->op, c->stream, position_fwd, .x = x, .position = in->position_ids + meg_sp_first_row(c, x),
             .pos = l->pos, .drop = &drop);
}

void meg_embed_bwd(struct meg_ctx *c, struct meg_mat dx, const struct meg_embed_ids *in, const struct meg_embed *l)
{
    const struct meg_drop drop = meg_ctx_drop(c, l->dropout, (int)in->layer, MEG_DROP_EMBED);

    if (!l->dword.p && !l->dpos.p && !l->dtypes.p)
        return;
    MEG_CALL(c->op, c->stream, position_bwd, .dpos = l->dpos, .dx = dx,
             .position = in->position_ids + meg_sp_first_row(c, dx), .drop = &drop,
             .accumulate = c->call.accumulates_grads);
    if (l->dtypes.p)
        MEG_CALL(c->op, c->stream, position_bwd, .dpos = l->dtypes, .dx = dx,
                 .position = in->token_types + meg_sp_first_row(c, dx), .drop = &none,
                 .accumulate = c->call.accumulates_grads);
    if (l->dword.p)
        MEG_CALL(c->op, c->stream, embed_bwd, .dword = l->dword, .v0 = l->v0, .dx = meg_sp_gather(c, dx),
                 .token = in->tokens, .accumulate = c->call.accumulates_grads || l->is_tied);
}
