/*
 * sample.h - choosing the next token from the logits of the last one.
 *
 * Megatron's rule: x = logits / temperature; top-k keeps what is not below the k-th largest (ties
 * with it stay); top-p goes through x from the largest down and keeps an entry while the softmax
 * mass before it is at most p (the one that crosses p stays, the first always does; equal entries
 * count in the order of their ids); then one is drawn from the softmax of what is kept.  Greedy is
 * the largest logit, the lowest id of equals.
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
    double top_p;       /* 0: off */
    int64_t seed;       /* -1: from the machine */
};
extern const struct meg_opt meg_sampling_opts[];

/* Refuse what breaks a rule (MEG_EUSAGE), top-k above the ids that may be drawn among it; draw a seed where it is -1. */
int meg_sampling_check(struct meg_sampling *c, int64_t unpadded_vocab, struct meg_err *e);

/* Return whether the likeliest id is taken, which --greedy, --top_k 1 and --temperature 0 ask for. */
bool meg_sampling_is_greedy(const struct meg_sampling *c);

/* What is left to draw from, best first where a filter is on, else by id. */
struct meg_token_sampler {
    int64_t v, unpadded_vocab; /* logits of a row; those that may be drawn: ids below it */
    int64_t n;                 /* ids kept */
    int32_t *id;               /* [drawable] */
    double *p;                 /* [drawable] probabilities of id[0..n), sum 1 */
    int32_t *heap;             /* [drawable] scratch */
};
/* 1 <= drawable <= v. */
void meg_token_sampler_init(struct meg_token_sampler *s, int64_t v, int64_t unpadded_vocab);
void meg_token_sampler_free(struct meg_token_sampler *s);

/* Fill n, id and p from logits [v], which are numbers, one of those that may be drawn finite.  conf is checked. */
void meg_token_sampler_filter(struct meg_token_sampler *s, const struct meg_sampling *conf, const float *logits);

/*
 * meg_sample_token - the id that follows, and *logprob = log softmax(logits)[id] in nats, of the logits
 * as they are, whatever was drawn from.
 *   conf    checked
 *   logits  [v]
 * The draw is a function of (seed, prompt, step) alone: u = meg_philox_sampling of them, in (0,1], and
 * the first kept entry at which the running sum of p reaches u (base/philox.h).
 * -1 when a logit is not a number or none that may be drawn is finite.
 */
int32_t meg_sample_token(struct meg_token_sampler *s, const struct meg_sampling *conf, const float *logits,
                         int64_t prompt, int64_t step, double *logprob);

/* A token that may follow, and the natural logarithm of its probability. */
struct meg_token_logprob {
    int32_t id;
    float logprob;
};

/*
 * meg_top_logprobs - the n likeliest ids of a row, best first, of equals the lower id first
 *   out     [n]  n <= v
 *   logits  [v]  not NaN, that of id finite
 *   id, logprob  an id and the logarithm of its probability: those of the others are taken from it, so that the
 *                same id, or one as likely, has the same float
 *   heap    [v]  scratch
 */
void meg_top_logprobs(struct meg_token_logprob *out, int64_t n, const float *logits, int64_t v, int32_t id,
                      double logprob, int32_t *heap);

/* -log softmax(logits)[id] is meg_logsumexp(logits) - logits[id]; NaN when a logit is NaN. */
double meg_logsumexp(const float *logits, int64_t v);

MEG_END_DECLS
#endif
