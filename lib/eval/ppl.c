/* ppl.c - perplexity of a long token sequence by sliding windows, as in Megatron-LM's WIKITEXT103 task. */
#include "eval/ppl.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

int64_t meg_window_count(int64_t tokens, int64_t stride)
{
    int64_t targets = tokens - 1, rest = targets > stride ? targets - stride : 0;

    return (rest + stride - 1) / stride + 1;
}

struct meg_window meg_window_at(int64_t tokens, int64_t seq_length, int64_t stride, int64_t i)
{
    struct meg_window w = { i * stride, tokens - i * stride, 0, 0 };

    if (w.ntok > seq_length + 1)
        w.ntok = seq_length + 1;
    w.first = i == 0 ? 0 : seq_length - stride;
    w.ntargets = w.ntok - 1 > w.first ? w.ntok - 1 - w.first : 0;
    return w;
}

static int read_ids(void *ctx, int64_t first, int64_t count, int32_t *out, struct meg_err *e)
{
    const struct meg_ids *ids = ctx;

    (void)e;
    memcpy(out, ids->v + first, (size_t)count * sizeof *out);
    return 0;
}

struct meg_token_stream meg_token_stream_from_ids(const struct meg_ids *ids)
{
    return (struct meg_token_stream){ ids->n, (void *)ids, read_ids };
}

static int read_dataset(void *ctx, int64_t first, int64_t count, int32_t *out, struct meg_err *e)
{
    struct meg_dataset_reader *r = ctx;
    int64_t seq, begin, len, n, i;
    int ret;

    while (r->seq_start + (len = meg_indexed_length(r->d, r->seq)) <= first) {
        r->seq_start += len;
        r->seq++;
    }
    for (seq = r->seq, begin = r->seq_start; count > 0; begin += len, seq++) {
        len = meg_indexed_length(r->d, seq);
        n = begin + len - first < count ? begin + len - first : count;
        if ((ret = meg_indexed_get(r->d, seq, first - begin, n, out, e)) < 0)
            return ret;
        for (i = 0; i < n; i++)
            if (out[i] < 0 || out[i] >= r->vocab_size)
                return meg_fail(e, MEG_EFORMAT,
                                "%s.bin: the id at offset %" PRId64 " of sequence %" PRId64
                                " (both counted from 0) is %d; the vocabulary of the model has ids 0 to %" PRId64
                                "; preprocess the text with the tokenizer of the model",
                                r->d->prefix, (first - begin + i), seq, out[i], r->vocab_size - 1);
        first += n;
        out += n;
        count -= n;
    }
    return 0;
}

struct meg_token_stream meg_token_stream_from_dataset(struct meg_dataset_reader *r, const struct meg_indexed *d,
                                                      int64_t vocab_size)
{
    *r = (struct meg_dataset_reader){ .d = d, .vocab_size = vocab_size };
    return (struct meg_token_stream){ d->tokens, r, read_dataset };
}

/* Add the number of bytes of the text of ids [n] to *total; end-of-document ids have no text. */
static int count_bytes(int64_t *total, const struct meg_tokenizer *tok, const int32_t *ids, int64_t n,
                       struct meg_str *scratch, struct meg_err *e)
{
    int64_t i;
    int r;

    scratch->n = 0;
    for (i = 0; i < n; i++)
        if (ids[i] != meg_tokenizer_eod(tok) && (r = meg_tokenizer_bytes(tok, ids + i, 1, scratch, e)) < 0)
            return r;
    *total += (int64_t)scratch->n;
    return 0;
}

int meg_ppl(struct meg_ppl_result *out, struct meg_scorer *s, const struct meg_token_stream *src,
            const struct meg_ppl_conf *c, struct meg_err *e)
{
    const int64_t seq_length = c->seq_length, stride = c->stride;
    const int64_t longest = seq_length < src->n - 1 ? seq_length : src->n - 1;
    int32_t *ids = meg_new((size_t)(longest + 1) * sizeof *ids);
    float *logprob = meg_new((size_t)longest * sizeof *logprob);
    struct meg_str scratch = { 0 };
    struct meg_window w;
    int64_t i, t, windows = meg_window_count(src->n, stride);
    int r = 0;

    MEG_ASSERT_LE(2, src->n);
    MEG_ASSERT_LE(1, stride);
    MEG_ASSERT_LE(stride, seq_length);
    MEG_ASSERT_LE(seq_length, s->g->conf.max_position_embeddings);
    *out = (struct meg_ppl_result){ 0 };
    for (i = 0; i < windows; i++) {
        w = meg_window_at(src->n, seq_length, stride, i);
        if (w.ntargets == 0)
            break; /* no later window has targets, either */
        if ((r = src->read(src->ctx, w.start, w.ntok, ids, e)) < 0 || (r = meg_score(s, ids, w.ntok, logprob, e)) < 0)
            goto out;
        for (t = w.first; t < w.first + w.ntargets; t++)
            out->loss -= logprob[t];
        if (c->tok && (r = count_bytes(&out->bytes, c->tok, ids + w.first + 1, w.ntargets, &scratch, e)) < 0)
            goto out;
        out->num_targets += w.ntargets;
        out->windows++;
        if (c->progress)
            c->progress(c->ctx, out);
    }
out:
    meg_str_free(&scratch);
    free(logprob);
    free(ids);
    return r;
}

double meg_ppl_value(const struct meg_ppl_result *p)
{
    return exp(fmin(20, p->loss / (double)p->num_targets));
}
