/*
 * score.h - how likely a model finds a sequence of tokens.
 */
#ifndef MEG_EVAL_SCORE_H
#define MEG_EVAL_SCORE_H
#include "infer/sample.h"
#include "model/gpt.h"

MEG_BEGIN_DECLS

/* Sequences are scored one at a time, each alone in its micro-batch: none can touch another's numbers. */
struct meg_scorer {
    struct meg_gpt *g; /* borrowed; created with run.s >= the longest sequence less one */
    int32_t *position; /* [run.s] 0, 1, … */
    float *logits;     /* scratch of meg_score_top, NULL until it is called, */
    int32_t *heap;
};
void meg_scorer_init(struct meg_scorer *s, struct meg_gpt *g);
void meg_scorer_free(struct meg_scorer *s);

/*
 * meg_score - natural logarithms of p(ids[i+1] | ids[0..i]) of the softmax over the vocabulary
 *   ids      [n]    n from 2 to run.s + 1
 *   logprob  [n-1]  out
 * MEG_EFAIL when one is not finite.
 */
int meg_score(struct meg_scorer *s, const int32_t *ids, int64_t n, float *logprob, struct meg_err *e);

/*
 * meg_score_top - the same, and the likeliest ids at each position
 *   top  [n-1,ntop]  out  as meg_top_logprobs; where ids[i+1] is as likely as the best, it has the same float
 */
int meg_score_top(struct meg_scorer *s, const int32_t *ids, int64_t n, float *logprob, struct meg_token_logprob *top,
                  int64_t ntop, struct meg_err *e);

MEG_END_DECLS
#endif
