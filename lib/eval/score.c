/* score.c - log-probabilities of the tokens of a sequence under a model. */
#include "eval/score.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include "base/mem.h"

/* Set the positions of sequences of up to n tokens. */
static void set_positions(struct meg_scorer *s, int64_t n)
{
    if (n <= s->positions)
        return;
    s->position = meg_realloc_array(s->position, (size_t)n, sizeof *s->position);
    for (; s->positions < n; s->positions++)
        s->position[s->positions] = (int32_t)s->positions;
}

void meg_scorer_init(struct meg_scorer *s, struct meg_model *g)
{
    *s = (struct meg_scorer){ .g = g };
    set_positions(s, g->run.s);
}

void meg_scorer_free(struct meg_scorer *s)
{
    free(s->position);
    free(s->logits);
    free(s->heap);
}

int meg_score(struct meg_scorer *s, const int32_t *ids, int64_t n, float *logprob, struct meg_err *e)
{
    /* cast away const: the model does not write to a batch */
    int32_t *const tokens = (int32_t *)ids;
    struct meg_batch x = { .s = n - 1, .b = 1, .tokens = tokens, .labels = tokens + 1 };
    int64_t i;
    int r;

    MEG_ASSERT_LE(2, n);
    if ((r = meg_model_reserve(s->g, n - 1, n - 1, e)) < 0)
        return r;
    set_positions(s, n - 1);
    x.position_ids = s->position;
    meg_model_loss(s->g, &x, logprob);
    for (i = 0; i < n - 1; i++) {
        if (!isfinite(logprob[i]))
            return meg_fail(e, MEG_EFAIL,
                            "the log-probability of token %" PRId64
                            " (counted from 0) is %f; check the checkpoint for NaN or Inf",
                            i + 1, (double)-logprob[i]);
        logprob[i] = -logprob[i];
    }
    return 0;
}

int meg_score_top(struct meg_scorer *s, const int32_t *ids, int64_t n, float *logprob, struct meg_token_logprob *top,
                  int64_t ntop, struct meg_err *e)
{
    const int64_t v = s->g->conf.vocab_size;
    int64_t i, j, rows, chunk;
    int r = meg_score(s, ids, n, logprob, e);

    if (r < 0 || ntop == 0)
        return r;
    chunk = meg_model_logit_rows(s->g);
    if (chunk > s->logit_rows) {
        s->logits = meg_realloc_array(s->logits, (size_t)(chunk * v), sizeof *s->logits);
        s->logit_rows = chunk;
    }
    if (!s->heap)
        s->heap = meg_new((size_t)v * sizeof *s->heap);
    for (i = 0; i < n - 1; i += rows) {
        rows = chunk < n - 1 - i ? chunk : n - 1 - i;
        meg_model_loss_logits(s->g, i, rows, s->logits);
        for (j = 0; j < rows; j++)
            meg_top_logprobs(top + (i + j) * ntop, ntop, s->logits + j * v, v, ids[i + j + 1], logprob[i + j], s->heap);
    }
    return 0;
}
