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

void MEG_FN(xent_partial)(struct meg_stream *st, float *part, struct meg_mat logits, const int32_t *target, int64_t v0)
{
    float *lse = part, *target_logit = part + logits.rows;
    (void)st;
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < logits.rows; r++) {
        const int64_t t = target[r] - v0;
        float buf[VOCAB_BLOCK], m = -INFINITY, s = 0.0f;
        for (int64_t c0 = 0; c0 < logits.cols; c0 += VOCAB_BLOCK) {
            const int64_t n = meg_min64(VOCAB_BLOCK, logits.cols - c0);
            const float most = row_max(row_read(logits, r, c0, n, buf), n);
            m = most > m ? most : m;
        }
        for (int64_t c0 = 0; c0 < logits.cols; c0 += VOCAB_BLOCK) {
            const int64_t n = meg_min64(VOCAB_BLOCK, logits.cols - c0);
            const float *x = row_read(logits, r, c0, n, buf);
#pragma omp simd reduction(+ : s)
            for (int64_t c = 0; c < n; c++)
                s += vexp(x[c] - m);
        }
        lse[r] = m + logf(s);
        target_logit[r] = t >= 0 && t < logits.cols ? *row_read(logits, r, t, 1, buf) : 0.0f;
    }
}

void MEG_FN(xent_combine)(struct meg_stream *st, float *loss, float *lse, const float *part, const int32_t *target,
                          int64_t nparts, int64_t n, float z_loss)
{
    (void)st;
    for (int64_t r = 0; r < n; r++) {
        float m = -INFINITY, s = 0.0f, target_logit = 0.0f;

        for (int64_t i = 0; i < nparts; i++)
            m = fmaxf(m, part[2 * n * i + r]);
        for (int64_t i = 0; i < nparts; i++) {
            s += expf(part[2 * n * i + r] - m);
            target_logit += part[2 * n * i + n + r];
        }
        lse[r] = m + logf(s);
        loss[r] = lse[r] - target_logit;
        if (z_loss != 0.0f)
            loss[r] += z_loss * lse[r] * lse[r];
        if (target[r] < 0)
            loss[r] = 0.0f;
    }
}

void MEG_FN(xent_bwd)(struct meg_stream *st, struct meg_mat logits, const float *lse, const int32_t *target, int64_t v0,
                      float z_loss, struct meg_loss_weight weight)
{
    const double scale = (weight.scale ? *weight.scale : 1) * (weight.loss_scale ? *weight.loss_scale : 1);
    (void)st;
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < logits.rows; r++)
        for (int64_t c0 = 0; c0 < logits.cols; c0 += VOCAB_BLOCK) {
            const int64_t n = meg_min64(VOCAB_BLOCK, logits.cols - c0), t = target[r] - v0 - c0;
            float buf[VOCAB_BLOCK], *x = row_load(logits, r, c0, n, buf);
            const float l = lse[r], w = (float)(weight.mask ? scale * (double)weight.mask[r] : scale);
            const float w_softmax = z_loss != 0.0f ? w * (1.0f + 2.0f * z_loss * l) : w;
            if (target[r] < 0) {
                memset(x, 0, (size_t)n * sizeof *x);
            } else {
#pragma omp simd
                for (int64_t c = 0; c < n; c++)
                    x[c] = w_softmax * vexp(x[c] - l);
            }
            if (t >= 0 && t < n)
                x[t] -= w;
            row_store(logits, r, c0, n, x);
        }
}

void MEG_FN(xent_fwd_bwd)(struct meg_stream *st, float *loss, struct meg_mat logits, const int32_t *target,
                          float z_loss, struct meg_loss_weight weight)
{
    for (int64_t r = 0; r < logits.rows; r += ROW_BLOCK) {
        const int64_t n = meg_min64(ROW_BLOCK, logits.rows - r);
        const struct meg_mat rows = meg_mat_rows(logits, r, n);
        const struct meg_loss_weight w = { weight.mask ? weight.mask + r : NULL, weight.scale, weight.loss_scale };
        float part[2 * ROW_BLOCK], lse[ROW_BLOCK];

        MEG_FN(xent_partial)(st, part, rows, target + r, 0);
        MEG_FN(xent_combine)(st, loss + r, lse, part, target + r, 1, n, z_loss);
        MEG_FN(xent_bwd)(st, rows, lse, target + r, 0, z_loss, w);
    }
}
