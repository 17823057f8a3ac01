/* span_mask.c - mask BERT and T5 samples: draw random spans of words until enough tokens are masked. */
#include "data/masked/span_mask.h"
#include <math.h>
#include <stdlib.h>
#include "base/mem.h"
#include "data/blend/blend.h"

/* Words that may be masked: word k is position[first[k]] .. position[first[k + 1] - 1]. */
struct word_list {
    int32_t *position;
    int64_t *first, n;
};

static void find_words(struct word_list *w, const int32_t *tokens, int64_t n, bool whole_word,
                       const struct meg_masked_vocab *v)
{
    int64_t at = 0;

    w->position = meg_new((size_t)n * sizeof *w->position);
    w->first = meg_new(((size_t)n + 1) * sizeof *w->first);
    w->n = 0;
    for (int64_t i = 0; i < n; i++) {
        if (tokens[i] == v->cls || tokens[i] == v->sep)
            continue;
        if (!whole_word || w->n == 0 || !v->is_continuation[tokens[i]])
            w->first[w->n++] = at;
        w->position[at++] = (int32_t)i;
    }
    w->first[w->n] = at;
}

/*
 * Return the probabilities [max_ngram] of spans of 1 to max_ngram words: in proportion to 1 / length or, with
 * longer_ngrams, the same numbers in reverse order.  The caller frees the result.
 */
static double *ngram_probs(const struct meg_mask_conf *c)
{
    const int n = (int)c->max_ngram;
    double *p = meg_new((size_t)n * sizeof *p);

    for (int k = 0; k < n; k++)
        p[k] = 1.0 / (k + 1);
    meg_blend_normalize(p, n);
    for (int k = 0; c->longer_ngrams && k < n / 2; k++) {
        const double t = p[k];

        p[k] = p[n - 1 - k];
        p[n - 1 - k] = t;
    }
    meg_blend_normalize(p, n);
    return p;
}

static int64_t draw_num_words(const struct meg_mask_conf *c, const double *probs, struct meg_mt19937 *g)
{
    int64_t n;

    if (!c->geometric)
        return 1 + meg_mt19937_choice(g, probs, c->max_ngram);
    n = meg_mt19937_geometric(g, 0.2);
    return n < c->max_ngram ? n : c->max_ngram;
}

static int32_t replacement(int32_t id, enum meg_masked_type type, const struct meg_masked_vocab *v,
                           struct meg_mt19937 *g)
{
    int64_t k;

    if (type == MEG_MASKED_T5 || meg_mt19937_double(g) < 0.8)
        return v->mask;
    if (meg_mt19937_double(g) < 0.5)
        return id;
    k = meg_mt19937_randint(g, 0, v->random_ids ? v->nrandom : v->size);
    return v->random_ids ? v->random_ids[k] : (int32_t)k;
}

void meg_mask_tokens(struct meg_masked_spans *m, int32_t *tokens, int64_t n, int64_t target,
                     const struct meg_masked_conf *conf, const struct meg_masked_vocab *v, struct meg_mt19937 *g)
{
    const struct meg_mask_conf *c = &conf->mask;
    /* As in Megatron-LM, the limit is not rounded: if it is 6.75, spans are still drawn after 6 tokens are masked. */
    const double limit = fmin(c->prob * (double)target, fmax(1, rint((double)n * c->prob)));
    double *probs = ngram_probs(c);
    bool *is_masked = meg_new((size_t)n * sizeof *is_masked);
    int32_t *order;
    struct word_list w;

    find_words(&w, tokens, n, c->whole_word, v);
    *m = (struct meg_masked_spans){ .position = meg_new((size_t)n * sizeof *m->position),
                                    .original = meg_new((size_t)n * sizeof *m->original),
                                    .first = meg_new(((size_t)n + 1) * sizeof *m->first) };
    order = meg_new((size_t)w.n * sizeof *order);
    for (int64_t k = 0; k < w.n; k++)
        order[k] = (int32_t)k;
    meg_mt19937_shuffle_i32(g, order, w.n);
    for (int64_t k = 0; k < w.n && (double)m->n < limit; k++) {
        const int64_t begin = w.first[order[k]];
        int64_t words = draw_num_words(c, probs, g), end;
        bool is_free = true;

        do
            end = w.first[order[k] + words < w.n ? order[k] + words : w.n];
        while ((double)(m->n + end - begin) > limit && --words > 0);
        for (int64_t i = begin; i < end; i++)
            is_free = is_free && !is_masked[w.position[i]];
        if (words == 0 || !is_free)
            continue;
        for (int64_t i = begin; i < end; i++) {
            const int32_t at = w.position[i];

            is_masked[at] = true;
            m->position[m->n] = at;
            m->original[m->n++] = tokens[at];
            tokens[at] = replacement(tokens[at], conf->type, v, g);
        }
        m->first[++m->nspan] = m->n;
    }
    meg_mt19937_shuffle_i32(g, order, w.n); /* advance g as Megatron-LM does; the new order is not used */
    free(order);
    free(w.position);
    free(w.first);
    free(is_masked);
    free(probs);
}

void meg_masked_spans_free(struct meg_masked_spans *m)
{
    free(m->position);
    free(m->original);
    free(m->first);
    *m = (struct meg_masked_spans){ 0 };
}
