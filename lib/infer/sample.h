/*
 * sample.h - token sampling: temperature, top-k, top-p and greedy decoding.
 *
 * The filters are the same as in Megatron-LM, and apply to x = logits / temperature.  Top-k keeps the k largest
 * entries, and all entries that are equal to the k-th largest.  Top-p visits x in descending order, on ties the lower
 * id first.  An entry is kept if the total softmax probability of the entries before it is at most p; the first entry
 * is always kept.  The token is sampled from the softmax over the kept entries.  Greedy decoding returns the id of the
 * largest logit, on a tie the lowest id.
 */
#ifndef MEG_INFER_SAMPLE_H
#define MEG_INFER_SAMPLE_H
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "option/opt.h"

MEG_BEGIN_DECLS

struct meg_sampling {
    bool greedy;
    double temperature; /* 0: greedy */
    int64_t top_k;      /* 0: off, 1: greedy */
    double top_p;       /* 0 or 1: off */
    int64_t seed;       /* -1: meg_sampling_check replaces it with a random seed */
};
extern const struct meg_opt meg_sampling_opts[];

/*
 * Check ranges and combinations of options, and top_k against unpadded_vocab.  Replace a seed of -1 with a random seed.
 * Returns MEG_EUSAGE if a check fails.
 */
int meg_sampling_check(struct meg_sampling *c, int64_t unpadded_vocab, struct meg_err *e);

/* Return whether decoding is greedy: --greedy, --top_k 1 or --temperature 0. */
bool meg_sampling_is_greedy(const struct meg_sampling *c);

/*
 * The distribution from which a token is sampled.  The entries are in ascending order of id, or in descending order of
 * probability if top-k or top-p is on.
 */
struct meg_token_sampler {
    int64_t v, unpadded_vocab; /* v: number of logits; ids from unpadded_vocab on are padding and are never sampled */
    int64_t n;                 /* number of ids kept by the filters */
    int32_t *id;               /* [unpadded_vocab] */
    double *p;                 /* [unpadded_vocab] probabilities of id[0..n), which sum to 1 */
    int32_t *heap;             /* [unpadded_vocab] scratch */
};
/* Allocate the arrays; 1 <= unpadded_vocab <= v. */
void meg_token_sampler_init(struct meg_token_sampler *s, int64_t v, int64_t unpadded_vocab);
void meg_token_sampler_free(struct meg_token_sampler *s);

/*
 * Set n, id and p from logits [v].  No logit may be NaN or +Inf, and the logit of at least one id below unpadded_vocab
 * must be finite.  conf must be checked (meg_sampling_check) and not greedy.
 */
void meg_token_sampler_filter(struct meg_token_sampler *s, const struct meg_sampling *conf, const float *logits);

/*
 * meg_sample_token - sample the next token and return its id
 *   conf     checked
 *   logits   [v]
 *   logprob  out  log softmax(logits)[id] in nats, before temperature and filters; or NULL, which takes less time
 * Unless decoding is greedy, the sample is the first kept entry at which the cumulative sum of p reaches u, a random
 * number in (0,1].  If rounding errors keep the sum below u, the sample is the last entry with p above 0.  The number u
 * depends only on (seed, prompt, step): u = meg_philox_sampling(seed, step, prompt) (base/philox.h).  Returns -1 if a
 * logit is NaN or +Inf, or if the logits of all ids below unpadded_vocab are -Inf.
 */
int32_t meg_sample_token(struct meg_token_sampler *s, const struct meg_sampling *conf, const float *logits,
                         int64_t prompt, int64_t step, double *logprob);

/*
 * Return the id of the largest of logits [v], v >= 1; of equal ones the lowest id.  NaN are ignored.  If no other logit
 * is above -Inf, the result is 0.
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

MEG_END_DECLS
#endif
