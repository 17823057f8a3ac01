/* embedding.c - token and learned position embedding. */
#include "nn/embedding.h"
#include "nn/sequence_parallel.h"

static const struct meg_drop none;

/* Return the rows of the position table, or of its gradient, from that of position 0. */
static struct meg_mat used_positions(const struct meg_embed *l, struct meg_mat pos)
{
    return meg_mat_rows(pos, l->first_position, pos.rows - l->first_position);
}

/* Convert x to the type of y. */
static void cast(struct meg_ctx *c, struct meg_mat y, struct meg_mat x)
{
    MEG_CALL(c->op, c->stream, cast, .dst = y.p, .dst_type = y.dtype, .src = x.p, .src_type = x.dtype,
             .n = x.rows * x.cols);
}

void meg_embed_fwd(struct meg_ctx *c, struct meg_mat x, const struct meg_embed_ids *in, struct meg_embed_norm *norm,
                   const struct meg_embed *l)
{
    const struct meg_drop drop = meg_ctx_drop(c, l->dropout, (int)in->layer, MEG_DROP_EMBED);
    const struct meg_mat words = norm->words.p ? norm->words : x, partial = meg_sp_partial_sum(c, words);

    MEG_CALL(c->op, c->stream, embed_fwd, .x = partial, .token = in->tokens, .word = l->word, .v0 = l->v0);
    meg_sp_reduce(c, words, partial);
    if (l->multiplier != 1)
        MEG_CALL(c->op, c->stream, scale, .y = words, .x = words, .factor = l->multiplier);
    if (norm->words.p) {
        meg_norm_fwd(c, norm->y, words, &norm->stats, &l->norm);
        cast(c, x, norm->y);
    }
    if (l->types.p)
        MEG_CALL(c->op, c->stream, position_fwd, .x = x, .position = in->token_types + meg_sp_first_row(c, x),
                 .pos = l->types, .drop = &none);
    MEG_CALL(c->op, c->stream, position_fwd, .x = x, .position = in->position_ids + meg_sp_first_row(c, x),
             .pos = used_positions(l, l->pos), .drop = &drop);
}

void meg_embed_bwd(struct meg_ctx *c, struct meg_mat dx, const struct meg_embed_ids *in,
                   const struct meg_embed_norm *norm, const struct meg_embed *l)
{
    const struct meg_drop drop = meg_ctx_drop(c, l->dropout, (int)in->layer, MEG_DROP_EMBED);

    if (!l->dword.p && !l->dpos.p && !l->dtypes.p && !l->norm.dw)
        return;
    if (l->dpos.p && !c->call.accumulates_grads)
        c->op->zero(c->stream, l->dpos.p, (size_t)(l->first_position * l->dpos.ld) * meg_dtype_size(l->dpos.dtype));
    MEG_CALL(c->op, c->stream, position_bwd, .dpos = used_positions(l, l->dpos), .dx = dx,
             .position = in->position_ids + meg_sp_first_row(c, dx), .drop = &drop,
             .accumulate = c->call.accumulates_grads);
    if (l->dtypes.p)
        MEG_CALL(c->op, c->stream, position_bwd, .dpos = l->dtypes, .dx = dx,
                 .position = in->token_types + meg_sp_first_row(c, dx), .drop = &none,
                 .accumulate = c->call.accumulates_grads);
    if (norm->words.p) {
        cast(c, norm->y, dx);
        meg_norm_bwd(c, dx, meg_no_mat(), norm->y, norm->words, &norm->stats, &l->norm);
    }
    if (l->multiplier != 1)
        MEG_CALL(c->op, c->stream, scale, .y = dx, .x = dx, .factor = l->multiplier);
    if (l->dword.p)
        MEG_CALL(c->op, c->stream, embed_bwd, .dword = l->dword, .v0 = l->v0, .dx = meg_sp_gather(c, dx),
                 .token = in->tokens, .accumulate = c->call.accumulates_grads || l->is_tied);
}
