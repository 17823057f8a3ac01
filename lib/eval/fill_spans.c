#include "eval/fill_spans.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

/* The state of decoding. */
struct decoder {
    struct meg_model *g;
    struct meg_ids encoder, tokens; /* inputs of the encoder and of the decoder */
    int32_t *position;              /* [max_position_embeddings] 0, 1, ... */
    float *logits;                  /* [tokens.n, vocabulary] */
};

/* Let the model take n tokens in each stack.  The buffers grow by doubling, for they grow token by token. */
static int reserve(struct meg_model *g, int64_t n, struct meg_err *e)
{
    int64_t s = 16;

    while (s < n)
        s *= 2;
    if (s > g->conf.max_position_embeddings)
        s = g->conf.max_position_embeddings;
    return meg_model_reserve(g, s, s, e);
}

/* Compute the logits of the token that follows d->tokens, and set *lse to their log-sum-exp. */
static int next_logits(struct decoder *d, const float **row, double *lse, struct meg_err *e)
{
    const int64_t n = d->tokens.n, v = d->g->conf.vocab_size;
    const struct meg_batch x = { .s = n,
                                 .b = 1,
                                 .s_enc = d->encoder.n,
                                 .tokens = d->tokens.v,
                                 .position_ids = d->position,
                                 .enc_tokens = d->encoder.v,
                                 .enc_position_ids = d->position };
    const int r = reserve(d->g, n > x.s_enc ? n : x.s_enc, e);

    if (r < 0)
        return r;
    d->logits = meg_realloc_array(d->logits, (size_t)(n * v), sizeof *d->logits);
    meg_model_logits(d->g, &x, d->logits);
    *row = d->logits + (n - 1) * v;
    *lse = meg_logsumexp(*row, v);
    if (isfinite(*lse))
        return 0;
    return meg_fail(e, MEG_EFAIL,
                    "the logits of token %" PRId64
                    " of the decoder (counted from 0) are not finite; check the checkpoint for NaN or Inf",
                    n);
}

static bool ends_span(const struct meg_masked_vocab *v, int32_t id)
{
    for (int64_t i = 0; i < v->nsentinel; i++)
        if (v->sentinel[i] == id)
            return true;
    return id == v->eos;
}

/* Predict the span of sentinel k, append it to `filled`, and list the ntop most likely ids of its first token in top. */
static int predict_span(struct decoder *d, const struct meg_masked_vocab *v, int64_t k, struct meg_ids *filled,
                        struct meg_token_logprob *top, int64_t ntop, int32_t *heap, struct meg_err *e)
{
    const int64_t vocab = d->g->conf.vocab_size, positions = d->g->conf.max_position_embeddings;
    bool is_first = true;
    int32_t id;

    if (d->tokens.n == positions)
        return meg_fail(e, MEG_EFORMAT,
                        "the spans before mask %" PRId64 " (counted from 0) have %" PRId64
                        " tokens, the most that the decoder takes; write fewer masks in the line",
                        k, positions);
    for (id = v->sentinel[k]; d->tokens.n < positions; is_first = false) {
        const float *row;
        double lse;
        int r;

        meg_ids_add(&d->tokens, id);
        if ((r = next_logits(d, &row, &lse, e)) < 0)
            return r;
        id = meg_most_likely(row, vocab);
        if (is_first)
            meg_top_logprobs(top, ntop, row, vocab, id, (double)row[id] - lse, heap);
        if (ends_span(v, id))
            break;
        meg_ids_add(filled, id);
    }
    return 0;
}

int meg_fill_spans_predict(struct meg_model *g, const struct meg_ids *ids, const struct meg_masked_vocab *v,
                           struct meg_ids *filled, struct meg_token_logprob *top, int64_t ntop, struct meg_err *e)
{
    const int64_t vocab = g->conf.vocab_size, positions = g->conf.max_position_embeddings;
    struct decoder d = { .g = g };
    int32_t *heap = meg_new((size_t)vocab * sizeof *heap);
    int64_t k = 0;
    int r = 0;

    d.position = meg_new((size_t)positions * sizeof *d.position);
    for (int64_t i = 0; i < positions; i++)
        d.position[i] = (int32_t)i;
    for (int64_t i = 0; i < ids->n; i++)
        meg_ids_add(&d.encoder, ids->v[i] == v->mask ? v->sentinel[k++] : ids->v[i]);
    meg_ids_add(&d.tokens, v->bos);
    k = 0;
    for (int64_t i = 0; i < ids->n && r == 0; i++)
        if (ids->v[i] != v->mask) {
            meg_ids_add(filled, ids->v[i]);
        } else {
            r = predict_span(&d, v, k, filled, top + k * ntop, ntop, heap, e);
            k++;
        }
    free(d.encoder.v);
    free(d.tokens.v);
    free(d.position);
    free(d.logits);
    free(heap);
    return r;
}
