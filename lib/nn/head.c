#include "nn/head.h"

int64_t meg_head_chunk(int64_t v, int64_t n)
{
    const int64_t rows = (INT64_C(25) << 20) / v / 64 * 64;

    return rows < 64 ? (n < 64 ? n : 64) : rows < n ? rows : n;
}

static struct meg_mat logits_of(struct meg_ctx *c, float *loss, struct meg_mat x, const int32_t *target,
                                const struct meg_head *l)
{
    const struct meg_mat y = meg_mat_rows(l->logits, 0, x.rows), none = { 0 };

    meg_col_fwd(c, y, none, x, &l->out, MEG_ACT_NONE);
    c->op->xent_part(c->st, l->part, y, target, 0);
    c->op->xent_join(c->st, loss, l->lse, l->part, 1, y.rows);
    return y;
}

void meg_head_loss(struct meg_ctx *c, float *loss, struct meg_mat x, const int32_t *target, const struct meg_head *l)
{
    const int64_t chunk = l->logits.rows;

    for (int64_t i = 0; i < x.rows; i += chunk) {
        const int64_t rows = chunk < x.rows - i ? chunk : x.rows - i;

        logits_of(c, loss + i, meg_mat_rows(x, i, rows), target + i, l);
    }
}

void meg_head_grad(struct meg_ctx *c, float *loss, struct meg_mat dx, struct meg_mat x, const int32_t *target,
                   const float *weight, const struct meg_head *l)
{
    const int64_t chunk = l->logits.rows;

    for (int64_t i = 0; i < x.rows; i += chunk) {
        const int64_t rows = chunk < x.rows - i ? chunk : x.rows - i;
        const struct meg_mat part = meg_mat_rows(x, i, rows);
        const struct meg_mat y = logits_of(c, loss + i, part, target + i, l);

        c->op->xent_bwd(c->st, y, l->lse, target + i, 0, weight + i);
        meg_col_bwd(c, meg_mat_rows(dx, i, rows), y, part, &l->out);
    }
}
