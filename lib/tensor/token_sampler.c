/* token_sampler.c - functions of one row of logits in host memory: sample a token, and list the most likely ones. */
#include "tensor/token_sampler.h"
#include <math.h>
#include "base/err.h"

size_t meg_token_sampler_nbytes(int64_t unpadded_vocab)
{
    return (size_t)unpadded_vocab * (sizeof(double) + 2 * sizeof(int32_t));
}

struct meg_token_sampler meg_token_sampler_of(int64_t v, int64_t unpadded_vocab, void *memory)
{
    struct meg_token_sampler s = { .v = v, .unpadded_vocab = unpadded_vocab, .p = memory };

    s.id = (int32_t *)(void *)(s.p + unpadded_vocab);
    s.heap = s.id + unpadded_vocab;
    return s;
}

static bool is_better(const float *logits, int32_t a, int32_t b)
{
    return logits[a] == logits[b] ? a < b : logits[a] > logits[b];
}

/* Restore the heap order of heap [n] below entry i.  heap[0] is the id with the largest logit. */
static void sift_down(int32_t *heap, int64_t n, int64_t i, const float *logits)
{
    int32_t x = heap[i];
    int64_t child;

    for (; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && is_better(logits, heap[child + 1], heap[child]))
            child++;
        if (is_better(logits, x, heap[child]))
            break;
        heap[i] = heap[child];
    }
    heap[i] = x;
}

/* Build a heap of the ids 0 .. n-1. */
static void heapify(int32_t *heap, int64_t n, const float *logits)
{
    int64_t i;

    for (i = 0; i < n; i++)
        heap[i] = (int32_t)i;
    for (i = n / 2; i-- > 0;)
        sift_down(heap, n, i, logits);
}

/* The largest logit is searched for in blocks of SEARCH_BLOCK logits, with SEARCH_LANES independent maxima. */
enum { SEARCH_BLOCK = 512, SEARCH_LANES = 16 };

/* Set most[k] to x[k] if x[k] is larger, for k < n; a NaN in x is ignored. */
static inline void max_into(float *most, const float *x, int64_t n)
{
#pragma omp simd
    for (int64_t k = 0; k < n; k++)
        most[k] = x[k] > most[k] ? x[k] : most[k];
}

/* Return the largest element of x [n] that is not NaN; -INFINITY if there is none. */
static float largest(const float *x, int64_t n)
{
    float most[SEARCH_LANES];
    int64_t i, k;

    for (k = 0; k < SEARCH_LANES; k++)
        most[k] = -INFINITY;
    for (i = 0; i + SEARCH_LANES <= n; i += SEARCH_LANES)
        max_into(most, x + i, SEARCH_LANES);
    max_into(most, x + i, n - i);
    for (k = SEARCH_LANES / 2; k > 0; k /= 2)
        max_into(most, most + k, k);
    return most[0];
}

/* Return whether an element of x [n] is NaN. */
static bool has_nan(const float *x, int64_t n)
{
    int is_found = 0;

#pragma omp simd reduction(| : is_found)
    for (int64_t i = 0; i < n; i++)
        is_found |= x[i] != x[i];
    return is_found;
}

/* Find the first block that contains the largest logit, then the first id of this block that has it. */
int32_t meg_most_likely(const float *logits, int64_t v)
{
    float most = -INFINITY;
    int64_t best = 0, i;

    for (i = 0; i < v; i += SEARCH_BLOCK) {
        const float x = largest(logits + i, SEARCH_BLOCK < v - i ? SEARCH_BLOCK : v - i);

        if (x > most) {
            most = x;
            best = i;
        }
    }
    while (most > -INFINITY && logits[best] != most)
        best++;
    return (int32_t)best;
}

/* Return log sum exp of logits [v], of which m is the largest. */
static double logsumexp(const float *logits, int64_t v, double m)
{
    double sum = 0;
    int64_t i;

    MEG_ASSERT_LT(0, v);
    for (i = 0; i < v; i++)
        sum += exp(logits[i] - m);
    return m + log(sum);
}

double meg_logsumexp(const float *logits, int64_t v)
{
    return logsumexp(logits, v, logits[meg_most_likely(logits, v)]);
}

void meg_top_logprobs(struct meg_token_logprob *out, int64_t n, const float *logits, int64_t v, int32_t id,
                      double logprob, int32_t *heap)
{
    int64_t i, left = v;

    MEG_ASSERT_LE(n, v);
    if (n > 0)
        heapify(heap, v, logits);
    for (i = 0; i < n; i++) {
        out[i].id = heap[0];
        out[i].logprob = (float)(logprob + ((double)logits[heap[0]] - (double)logits[id]));
        heap[0] = heap[--left];
        sift_down(heap, left, 0, logits);
    }
}

/*
 * Apply top-k and top-p.  The argument max is the largest logit, and total is the sum of exp((logit - max) /
 * temperature).  A filter usually keeps few ids, so the ids are popped from a heap and not sorted.
 */
static void filter_logits(struct meg_token_sampler *s, const struct meg_sampling_args *a, const float *logits,
                          double max, double total)
{
    int32_t *heap = s->heap, best;
    int64_t i, left = s->unpadded_vocab;
    double mass = 0;

    heapify(heap, left, logits);
    for (s->n = 0; left > 0; s->n++) {
        best = heap[0];
        if (a->top_k > 0 && s->n >= a->top_k && logits[best] < logits[s->id[s->n - 1]])
            break;
        if (a->top_p > 0 && a->top_p < 1 && s->n > 0 && mass / total > a->top_p)
            break;
        s->id[s->n] = best;
        s->p[s->n] = exp((logits[best] - max) / a->temperature);
        mass += s->p[s->n];
        heap[0] = heap[--left];
        sift_down(heap, left, 0, logits);
    }
    for (i = 0; i < s->n; i++)
        s->p[i] /= mass;
}

/* Compute meg_token_sampler_filter; max is the largest of the logits of ids below unpadded_vocab. */
static void filter(struct meg_token_sampler *s, const struct meg_sampling_args *a, const float *logits, double max)
{
    double total = 0;
    int64_t i;

    for (i = 0; i < s->unpadded_vocab; i++) {
        s->id[i] = (int32_t)i;
        s->p[i] = exp((logits[i] - max) / a->temperature);
        total += s->p[i];
    }
    if (a->top_k > 0 || (a->top_p > 0 && a->top_p < 1)) {
        filter_logits(s, a, logits, max, total);
        return;
    }
    s->n = s->unpadded_vocab;
    for (i = 0; i < s->n; i++)
        s->p[i] /= total;
}

void meg_token_sampler_filter(struct meg_token_sampler *s, const struct meg_sampling_args *a, const float *logits)
{
    filter(s, a, logits, logits[meg_most_likely(logits, s->unpadded_vocab)]);
}

static int32_t draw_from(const struct meg_token_sampler *s, double u)
{
    double sum = 0;
    int64_t i, last = 0;

    for (i = 0; i < s->n; i++) {
        if (s->p[i] == 0)
            continue;
        last = i;
        if ((sum += s->p[i]) >= u)
            break;
    }
    return s->id[last];
}

struct meg_sampled_token meg_sample_token(struct meg_token_sampler *s, const struct meg_sampling_args *a,
                                          const float *logits, bool has_logprob)
{
    const int32_t best = meg_most_likely(logits, s->unpadded_vocab);
    const float padding = largest(logits + s->unpadded_vocab, s->v - s->unpadded_vocab);
    const float most = padding > logits[best] ? padding : logits[best];
    struct meg_sampled_token token = { best, NAN };

    if (!isfinite(logits[best]) || most == INFINITY || has_nan(logits, s->v)) {
        token.id = -1;
        return token;
    }
    if (a->temperature > 0) {
        filter(s, a, logits, logits[best]);
        token.id = draw_from(s, a->u);
    }
    if (has_logprob)
        token.logprob = logits[token.id] - logsumexp(logits, s->v, most);
    return token;
}
