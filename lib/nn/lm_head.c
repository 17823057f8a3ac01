/* lm_head.c - language-model head and cross-entropy, in chunks of rows. */
#include "nn/lm_head.h"
#include "nn/sequence_parallel.h"

/* Compute and return the logits of a chunk of rows.  Also compute the loss of each row, and l->lse for the gradient. */
static struct meg_mat chunk_logits(struct meg_ctx *c, float *loss, struct meg_mat x, const int32_t *target,
                                   const struct meg_lm_head *l)
{
    const struct meg_mat y = meg_mat_rows(l->logits, 0, x.rows), none = { 0 };
    float *local_stats = l->partial_stats + 2 * x.rows * c->tp->rank;

    c->op->linear_fwd(c->stream, l->out.plan, y, none, x, l->out.w, NULL, MEG_ACT_NONE);
    c->op->xent_partial(c->stream, local_stats, y, target, l->v0);
    meg_all_gather(c->tp, c->stream, l->partial_stats, local_stats, 2 * x.rows, MEG_DTYPE_F32);
    c->op->xent_combine(c->stream, loss, l->lse, l->partial_stats, target, c->tp->size, x.rows, 0);
    return y;
}

void meg_lm_head_loss(struct meg_ctx *c, float *loss, struct meg_mat x, const int32_t *target,
                      const struct meg_lm_head *l)
{
    const struct meg_mat all = meg_sp_gather(c, x);
    const int64_t chunk = l->logits.rows;

    for (int64_t i = 0; i < all.rows; i += chunk) {
        const int64_t rows = chunk < all.rows - i ? chunk : all.rows - i;

        chunk_logits(c, loss + i, meg_mat_rows(all, i, rows), target + i, l);
    }
}

void meg_lm_head_fwd_bwd(struct meg_ctx *c, float *loss, struct meg_mat dx, struct meg_mat x, const int32_t *target,
                         struct meg_loss_weight weight, const struct meg_lm_head *l)
{
    const struct meg_mat all = meg_sp_gather(c, x), partial = meg_sp_partial_sum(c, dx), none = { 0 };
    const int64_t chunk = l->logits.rows;

    for (int64_t i = 0; i < all.rows; i += chunk) {
        const int64_t rows = chunk < all.rows - i ? chunk : all.rows - i;
        const struct meg_mat xc = meg_mat_rows(all, i, rows);
        const struct meg_mat y = chunk_logits(c, loss + i, xc, target + i, l);

        c->op->xent_bwd(c->stream, y, l->lse, target + i, l->v0, 0, weight);
        c->op->linear_bwd_weight(c->stream, l->out.plan, l->out.dw, NULL, y, xc, c->accumulates_grads || i > 0);
        c->op->linear_bwd_data(c->stream, l->out.plan, meg_mat_rows(partial, i, rows), y, l->out.w, none, MEG_ACT_NONE);
        weight.mask = weight.mask ? weight.mask + rows : NULL;
    }
    meg_sp_reduce(c, dx, partial);
}
