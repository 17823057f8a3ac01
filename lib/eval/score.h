/* score.h - log-probabilities of the tokens of a sequence under a model. */
#pragma once
#include "model/model.h"
#include "tensor/token_sampler.h"

/* A scorer evaluates one sequence per micro-batch, so that results do not depend on other sequences. */
struct meg_scorer {
    struct meg_model *g; /* borrowed; its buffers grow with the sequences (meg_model_reserve) */
    int32_t *position;   /* [positions] 0, 1, … */
    int64_t positions;   /* length of the longest sequence so far, at least run.s */
    float *logits;       /* [logit_rows,v] scratch of meg_score_top, NULL until its first call */
    int64_t logit_rows;  /* meg_model_logit_rows for the longest sequence so far */
    int32_t *heap;       /* [v] scratch of meg_score_top, NULL until its first call */
};
void meg_scorer_init(struct meg_scorer *s, struct meg_model *g);
void meg_scorer_free(struct meg_scorer *s);

/*
 * meg_score - compute log p(ids[i+1] | ids[0..i]), the log-softmax over the vocabulary
 *   ids      [n]    2 <= n <= max_position_embeddings + 1
 *   logprob  [n-1]  out  nats
 * Returns MEG_EFAIL if a log-probability is not finite, or if memory is exhausted.
 */
int meg_score(struct meg_scorer *s, const int32_t *ids, int64_t n, float *logprob, struct meg_err *e);

/*
 * meg_score_top - compute logprob as meg_score does, and list the ntop most likely ids at each position
 *   top  [n-1,ntop]  out  in the order of meg_top_logprobs; if ids[i+1] is listed, its log-probability equals
 *        logprob[i] exactly
 */
int meg_score_top(struct meg_scorer *s, const int32_t *ids, int64_t n, float *logprob, struct meg_token_logprob *top,
                  int64_t ntop, struct meg_err *e);
