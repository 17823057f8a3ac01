/* fill_spans.c - predict the masked spans of a text, the task that T5 was trained for. */
#include "eval/fill_spans.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

/* The state of decoding one text. */
struct decoder {
    struct meg_model *g;
    int64_t max_tokens;               /* maximum number of tokens of all spans, with the sentinels */
    int64_t nids;                     /* ids below nids may be predicted; those from nids on are padding */
    struct meg_model_kv_cache *cache; /* with one slot */
    const float *logits;              /* [vocabulary] of the next token */
    int32_t *heap;                    /* [nids] scratch */
};

/*
 * Append a token to the input of the decoder, compute the logits of the next token, and set *lse to their log-sum-exp.
 */
static int append(struct decoder *d, int32_t id, double *lse, struct meg_err *e)
{
    const int64_t slot = 0;

    d->logits = meg_model_decode(d->g, d->cache, &slot, &id, 1, NULL).logits;
    *lse = meg_logsumexp(d->logits, d->g->conf.vocab_size);
    if (isfinite(*lse))
        return 0;
    return meg_fail(e, MEG_EFAIL,
                    "the logits of token %" PRId64
                    " of the decoder (counted from 0) are not finite; check the checkpoint for NaN or Inf",
                    meg_model_kv_cache_len(d->cache, 0));
}

/* Predict the span of sentinel k, append it to `filled`, and list the ntop most likely ids of its first token. */
static int predict_span(struct decoder *d, const struct meg_span_vocab *v, int64_t k, struct meg_ids *filled,
                        struct meg_token_logprob *top, int64_t ntop, struct meg_err *e)
{
    bool is_first = true;
    int32_t id;

    if (meg_model_kv_cache_len(d->cache, 0) == d->max_tokens)
        return meg_fail(e, MEG_EFORMAT,
                        "the spans before mask %" PRId64 " (counted from 0) have %" PRId64
                        " tokens, the most that the decoder takes; write fewer masks in the line",
                        k, d->max_tokens);
    for (id = v->sentinel[k]; meg_model_kv_cache_len(d->cache, 0) < d->max_tokens; is_first = false) {
        double lse;
        int r;

        if ((r = append(d, id, &lse, e)) < 0)
            return r;
        id = meg_most_likely(d->logits, d->nids);
        if (is_first)
            meg_top_logprobs(top, ntop, d->logits, d->nids, id, (double)d->logits[id] - lse, d->heap);
        if (id == v->eos || meg_span_vocab_find(v, id) >= 0)
            break;
        meg_ids_add(filled, id);
    }
    return 0;
}

/* Return an exclusive upper bound of the ids of the tokenizer and of the sentinels, which may have higher ids. */
static int64_t num_ids(const struct meg_loaded_model *m, const struct meg_span_vocab *v)
{
    int64_t n = m->unpadded_vocab;

    for (int64_t k = 0; k < v->nsentinel; k++)
        n = v->sentinel[k] < n ? n : v->sentinel[k] + 1;
    return n;
}

/*
 * Return the maximum number of tokens of the decoder for a line of n tokens: the larger of n and the 512 tokens of the
 * original T5, but at most the maximum sequence length of the model.  The relative bias of a T5 has no such limit, and
 * the time of decoding grows with the square of the number of tokens.
 */
static int64_t max_decoded(const struct meg_model *g, int64_t n)
{
    enum { T5_TOKENS = 512 };
    const int64_t positions = g->conf.max_position_embeddings, limit = n > T5_TOKENS ? n : T5_TOKENS;

    return limit < positions ? limit : positions;
}

int meg_fill_spans_predict(const struct meg_loaded_model *m, struct meg_model_kv_cache *cache,
                           const struct meg_span_vocab *v, struct meg_ids *ids, struct meg_token_logprob *top,
                           int64_t ntop, struct meg_err *e)
{
    struct decoder d = { .g = m->g, .cache = cache, .nids = num_ids(m, v), .max_tokens = max_decoded(m->g, ids->n) };
    const struct meg_prefill bos = { .tokens = &v->bos, .n = 1, .s = m->g->conf.max_position_embeddings };
    struct meg_ids filled = { 0 };
    int64_t k = 0;
    int r;

    d.heap = meg_new((size_t)d.nids * sizeof *d.heap);
    if ((r = meg_model_encode(d.g, d.cache, 0, ids->v, ids->n, e)) == 0)
        r = meg_model_prefill(d.g, d.cache, &bos, NULL, e);
    for (int64_t i = 0; i < ids->n && r == 0; i++)
        if (meg_span_vocab_find(v, ids->v[i]) < 0) {
            meg_ids_add(&filled, ids->v[i]);
        } else {
            r = predict_span(&d, v, k, &filled, top + k * ntop, ntop, e);
            k++;
        }
    free(d.heap);
    free(ids->v);
    *ids = filled;
    return r;
}
