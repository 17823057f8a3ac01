/* isa: baseline v3 v4 */
/* xent.c - cross-entropy of rows of logits; backward replaces the logits by their gradient in place. */
#include <math.h>
#include "cpu/row.h"
#include "cpu/vmath.h"
#include "tensor/suballoc.h"

enum {
    VOCAB_BLOCK = 4096, /* number of logits converted to f32 at a time */
    ROW_BLOCK = 1024,   /* number of rows whose statistics xent_fwd_bwd stores at a time */
};

void MEG_FN(xent_partial)(struct meg_stream *st, const struct meg_xent_partial_args *a)
{
    float *lse = a->part, *target_logit = a->part + a->logits.rows;
    (void)st;
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < a->logits.rows; r++) {
        const int64_t t = a->target[r] - a->v0;
        float buf[VOCAB_BLOCK], m = -INFINITY, s = 0.0f;
        for (int64_t c0 = 0; c0 < a->logits.cols; c0 += VOCAB_BLOCK) {
            const int64_t n = meg_min64(VOCAB_BLOCK, a->logits.cols - c0);
            const float most = row_max(row_read(a->logits, r, c0, n, buf), n);
            m = most > m ? most : m;
        }
        for (int64_t c0 = 0; c0 < a->logits.cols; c0 += VOCAB_BLOCK) {
            const int64_t n = meg_min64(VOCAB_BLOCK, a->logits.cols - c0);
            const float *x = row_read(a->logits, r, c0, n, buf);
#pragma omp simd reduction(+ : s)
            for (int64_t c = 0; c < n; c++)
                s += vexp(x[c] - m);
        }
        lse[r] = m + logf(s);
        target_logit[r] = t >= 0 && t < a->logits.cols ? *row_read(a->logits, r, t, 1, buf) : 0.0f;
    }
}

void MEG_FN(xent_combine)(struct meg_stream *st, const struct meg_xent_combine_args *a)
{
    (void)st;
    for (int64_t r = 0; r < a->n; r++) {
        float m = -INFINITY, s = 0.0f, target_logit = 0.0f;

        for (int64_t i = 0; i < a->nparts; i++)
            m = fmaxf(m, a->part[2 * a->n * i + r]);
        for (int64_t i = 0; i < a->nparts; i++) {
            s += expf(a->part[2 * a->n * i + r] - m);
            target_logit += a->part[2 * a->n * i + a->n + r];
        }
        a->lse[r] = m + logf(s);
        a->loss[r] = a->lse[r] - target_logit;
        if (a->z_loss != 0.0f)
            a->loss[r] += a->z_loss * a->lse[r] * a->lse[r];
        if (a->target[r] < 0)
            a->loss[r] = 0.0f;
    }
}

/* Return the derivative of softcap * tanh(x / softcap), where y is its value; 1 if softcap is 0. */
static inline float softcap_grad(float y, float softcap)
{
    return softcap > 0.0f ? 1.0f - (y / softcap) * (y / softcap) : 1.0f;
}

void MEG_FN(xent_bwd)(struct meg_stream *st, const struct meg_xent_bwd_args *a)
{
    const double scale = (a->weight.scale ? *a->weight.scale : 1) * (a->weight.loss_scale ? *a->weight.loss_scale : 1);
    (void)st;
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < a->logits.rows; r++)
        for (int64_t c0 = 0; c0 < a->logits.cols; c0 += VOCAB_BLOCK) {
            const int64_t n = meg_min64(VOCAB_BLOCK, a->logits.cols - c0), t = a->target[r] - a->v0 - c0;
            float buf[VOCAB_BLOCK], *x = row_load(a->logits, r, c0, n, buf);
            const float l = a->lse[r], w = (float)(a->weight.mask ? scale * (double)a->weight.mask[r] : scale);
            const float w_softmax = a->z_loss != 0.0f ? w * (1.0f + 2.0f * a->z_loss * l) : w;
            const float target_grad = t >= 0 && t < n ? w * softcap_grad(x[t], a->softcap) : 0.0f;
            if (a->target[r] < 0) {
                memset(x, 0, (size_t)n * sizeof *x);
            } else {
#pragma omp simd
                for (int64_t c = 0; c < n; c++)
                    x[c] = w_softmax * vexp(x[c] - l) * softcap_grad(x[c], a->softcap);
            }
            if (t >= 0 && t < n)
                x[t] -= target_grad;
            row_store(a->logits, r, c0, n, x);
        }
}

void MEG_FN(xent_fwd_bwd)(struct meg_stream *st, const struct meg_xent_fwd_bwd_args *a)
{
    for (int64_t r = 0; r < a->logits.rows; r += ROW_BLOCK) {
        const int64_t n = meg_min64(ROW_BLOCK, a->logits.rows - r);
        const struct meg_mat rows = meg_mat_rows(a->logits, r, n);
        const struct meg_loss_weight w = { a->weight.mask ? a->weight.mask + r : NULL, a->weight.scale,
                                           a->weight.loss_scale };
        const int32_t *target = a->target + r;
        float part[2 * ROW_BLOCK], lse[ROW_BLOCK];

        MEG_FN(xent_partial)(st, &(struct meg_xent_partial_args){ part, rows, target, 0 });
        MEG_FN(xent_combine)
        (st, &(struct meg_xent_combine_args){ a->loss + r, lse, part, target, 1, n, a->z_loss });
        MEG_FN(xent_bwd)(st, &(struct meg_xent_bwd_args){ rows, lse, target, 0, a->z_loss, a->softcap, w });
    }
}
