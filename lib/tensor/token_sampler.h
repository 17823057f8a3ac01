/* token_sampler.h - functions of one row of logits in host memory: sample a token, and list the most likely ones. */
#pragma once
#include "tensor/ops.h"

/*
 * The distribution from which a token is sampled.  The entries are in ascending order of id, or in descending order of
 * probability if top-k or top-p is on.
 */
struct meg_token_sampler {
    int64_t v, unpadded_vocab; /* v: number of logits; ids from unpadded_vocab on are padding and are never sampled */
    int64_t n;                 /* number of ids kept by the filters */
    double *p;                 /* [unpadded_vocab] probabilities of id[0..n), which sum to 1 */
    int32_t *id;               /* [unpadded_vocab] */
    int32_t *heap;             /* [unpadded_vocab] scratch */
};
/* Return the bytes of memory that a sampler needs. */
size_t meg_token_sampler_nbytes(int64_t unpadded_vocab);
/*
 * Return a sampler whose arrays are in `memory`, which belongs to the caller, has meg_token_sampler_nbytes bytes and is
 * aligned to 8 bytes; 1 <= unpadded_vocab <= v.
 */
struct meg_token_sampler meg_token_sampler_of(int64_t v, int64_t unpadded_vocab, void *memory);

/*
 * Set n, id and p from logits [v].  No logit may be NaN or +Inf, and the logit of at least one id below unpadded_vocab
 * must be finite; a->temperature is above 0.
 */
void meg_token_sampler_filter(struct meg_token_sampler *s, const struct meg_sampling_args *a, const float *logits);

/*
 * Sample the next token from logits [v], and compute its log-probability if has_logprob is set.  Greedy decoding does
 * not access the memory of s.
 */
struct meg_sampled_token meg_sample_token(struct meg_token_sampler *s, const struct meg_sampling_args *a,
                                          const float *logits, bool has_logprob);

/*
 * Return the id of the largest of logits [v], v >= 1; on a tie, the lowest id.  NaNs are ignored.  If all
 * logits are NaN or -Inf, the result is 0.
 */
int32_t meg_most_likely(const float *logits, int64_t v);

/* A candidate for the next token and the natural logarithm of its probability. */
struct meg_token_logprob {
    int32_t id;
    float logprob;
};

/*
 * meg_top_logprobs - list the n most likely ids in descending order, on ties the lower id first
 *   out     [n]  n <= v
 *   logits  [v]  none is NaN; logits[id] is finite
 *   id, logprob  an id and its log-probability.  The log-probability of a listed id k is logprob + logits[k] -
 *                logits[id].  For `id`, and for an id with an equal logit, the result equals logprob exactly.
 *   heap    [v]  scratch
 */
void meg_top_logprobs(struct meg_token_logprob *out, int64_t n, const float *logits, int64_t v, int32_t id,
                      double logprob, int32_t *heap);

/*
 * Return log sum exp of logits [v], v >= 1; log softmax(logits)[id] equals logits[id] minus the result.  Returns NaN if
 * a logit is NaN or +Inf, or if all are -Inf.
 */
double meg_logsumexp(const float *logits, int64_t v);
