#include "eval/ppl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "eval/windows.h"

static int read_ids(void *of, int64_t first, int64_t count, int32_t *out, struct meg_err *e)
{
    const struct meg_ids *ids = of;

    (void)e;
    memcpy(out, ids->v + first, (size_t)count * sizeof *out);
    return MEG_OK;
}

struct meg_token_stream meg_token_stream_from_ids(const struct meg_ids *ids)
{
    return (struct meg_token_stream){ ids->n, (void *)ids, read_ids };
}

static int read_dataset(void *of, int64_t first, int64_t count, int32_t *out, struct meg_err *e)
{
    struct meg_dataset_reader *r = of;
    int64_t seq, begin, len, n, i;
    int ret;

    while (r->begin + (len = meg_indexed_length(r->d, r->seq)) <= first) {
        r->begin += len;
        r->seq++;
    }
    for (seq = r->seq, begin = r->begin; count > 0; begin += len, seq++) {
        len = meg_indexed_length(r->d, seq);
        n = begin + len - first < count ? begin + len - first : count;
        if ((ret = meg_indexed_get(r->d, seq, first - begin, n, out, e)) < 0)
            return ret;
        for (i = 0; i < n; i++)
            if (out[i] < 0 || out[i] >= r->vocab_size)
                return meg_fail(e, MEG_EFORMAT,
                                "%s.bin: token %lld of sequence %lld is %d; the model has ids 0 to %lld",
                                meg_indexed_prefix(r->d), (long long)(first - begin + i), (long long)seq, out[i],
                                (long long)r->vocab_size - 1);
        first += n;
        out += n;
        count -= n;
    }
    return MEG_OK;
}

struct meg_token_stream meg_token_stream_from_dataset(struct meg_dataset_reader *r, const struct meg_indexed *d,
                                                      int64_t vocab_size)
{
    *r = (struct meg_dataset_reader){ .d = d, .vocab_size = vocab_size };
    return (struct meg_token_stream){ meg_indexed_tokens(d), r, read_dataset };
}

/* Bytes of the text that ids stand for; eod is not text. */
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
    return MEG_OK;
}

int meg_ppl(struct meg_ppl_result *out, struct meg_scorer *s, const struct meg_token_stream *src, int64_t seq_length,
            int64_t stride, const struct meg_tokenizer *tok, void (*progress)(void *ctx, const struct meg_ppl_result *),
            void *ctx, struct meg_err *e)
{
    int32_t *ids = meg_new((size_t)(seq_length + 1) * sizeof *ids);
    float *logprob = meg_new((size_t)seq_length * sizeof *logprob);
    struct meg_str scratch = { 0 };
    struct meg_window w;
    int64_t i, t, windows = meg_window_count(src->n, stride);
    int r = MEG_OK;

    MEG_ASSERT_LE(2, src->n);
    MEG_ASSERT_LE(1, stride);
    MEG_ASSERT_LE(stride, seq_length);
    MEG_ASSERT_LE(seq_length, s->g->run.s);
    *out = (struct meg_ppl_result){ 0 };
    for (i = 0; i < windows; i++) {
        w = meg_window_at(src->n, seq_length, stride, i);
        if (w.scored == 0)
            break; /* and so do all that follow */
        if ((r = src->read(src->of, w.start, w.ntok, ids, e)) < 0 || (r = meg_score(s, ids, w.ntok, logprob, e)) < 0)
            goto out;
        for (t = w.first; t < w.first + w.scored; t++)
            out->loss -= logprob[t];
        if (tok && (r = count_bytes(&out->bytes, tok, ids + w.first + 1, w.scored, &scratch, e)) < 0)
            goto out;
        out->scored += w.scored;
        out->windows++;
        if (progress)
            progress(ctx, out);
    }
out:
    meg_str_free(&scratch);
    free(logprob);
    free(ids);
    return r;
}

double meg_ppl_value(const struct meg_ppl_result *p)
{
    return exp(fmin(20, p->loss / (double)p->scored));
}
