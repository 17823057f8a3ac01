/* bert_t5_sample.c - samples of BERT and T5: sentences with masked words. */
#include "data/masked/bert_t5_sample.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "data/dataset_internal.h"
#include "data/masked/span_mask.h"

struct meg_masked_conf meg_masked_defaults(enum meg_masked_type type)
{
    struct meg_masked_conf c = { .type = type,
                                 .short_seq_prob = 0.1,
                                 .has_pairs = type == MEG_MASKED_BERT,
                                 .mask = { .prob = 0.15, .max_ngram = 3, .whole_word = true } };

    if (type == MEG_MASKED_T5) {
        c.mask.max_ngram = 10;
        c.mask.geometric = true;
    }
    return c;
}

/* The sentences of a sample, its target length and its random generator. */
struct sentences {
    int64_t nsentence, target;
    int64_t *first; /* [nsentence+1] offset of each sentence in tokens */
    int32_t *tokens;
    struct meg_mt19937 rng;
};

static int load_sentences(struct sentences *x, const struct meg_dataset *ds, int64_t i, struct meg_err *e)
{
    const struct meg_indexed *d = meg_source_indexed(ds->src);
    const int64_t begin = meg_sentence_map_at(&ds->sentence_map, i, 0);
    const int64_t end = meg_sentence_map_at(&ds->sentence_map, i, 1);
    int64_t n = 0;
    int r;

    *x = (struct sentences){ .target = meg_sentence_map_at(&ds->sentence_map, i, 2) };
    if (begin < 0 || begin >= end || end > d->sequences || x->target < 1 || x->target > ds->masked_conf.seq_length)
        return meg_dataset_cache_mismatch(ds, e);
    meg_mt19937_seed(&x->rng, ds->masked_conf.seed + (uint32_t)i);
    x->nsentence = end - begin;
    x->first = meg_new(((size_t)x->nsentence + 1) * sizeof *x->first);
    for (int64_t s = 0; s < x->nsentence; s++) {
        x->first[s] = n;
        n += meg_indexed_length(d, begin + s);
    }
    x->first[x->nsentence] = n;
    x->tokens = meg_new((size_t)n * sizeof *x->tokens);
    for (int64_t s = 0; s < x->nsentence; s++)
        if ((r = meg_indexed_get(d, begin + s, 0, x->first[s + 1] - x->first[s], x->tokens + x->first[s], e)) < 0)
            return r;
    for (int64_t k = 0; k < n; k++)
        if ((r = meg_dataset_check_id(ds, x->tokens[k], ds->masked_conf.vocab.size, e)) < 0)
            return r;
    return 0;
}

static void free_sentences(struct sentences *x)
{
    free(x->first);
    free(x->tokens);
}

static void fill(int32_t *out, int64_t from, int64_t to, int32_t value)
{
    for (int64_t k = from; k < to; k++)
        out[k] = value;
}

/* ---- BERT --------------------------------------------------------------------------------------- */

struct segment {
    const int32_t *v;
    int64_t n;
};

/*
 * Split the sentences into segments *a and *b at a random sentence.  Swap the segments with probability 1/2, and return
 * whether they are swapped.  Without pairs, *a contains all sentences, and *b is empty.
 */
static bool choose_segments(struct sentences *x, bool has_pairs, struct segment *a, struct segment *b)
{
    int64_t pivot = x->nsentence, cut;
    bool is_swapped = false;

    if (has_pairs) {
        pivot = x->nsentence == 2 ? 1 : meg_mt19937_randint(&x->rng, 1, x->nsentence);
        is_swapped = meg_mt19937_double(&x->rng) < 0.5;
    }
    cut = x->first[pivot];
    *a = (struct segment){ x->tokens, cut };
    *b = (struct segment){ x->tokens + cut, x->first[x->nsentence] - cut };
    if (is_swapped) {
        const struct segment t = *a;

        *a = *b;
        *b = t;
    }
    return is_swapped;
}

/*
 * Truncate the segments to `max` tokens in total: repeatedly remove one token from a random end of the longer segment,
 * or of b if both are equally long.
 */
static void truncate_segments(struct segment *a, struct segment *b, int64_t max, struct meg_mt19937 *g)
{
    while (a->n + b->n > max) {
        struct segment *s = a->n > b->n ? a : b;

        if (meg_mt19937_double(g) < 0.5)
            s->v++;
        s->n--;
    }
}

int meg_bert_batch(const struct meg_dataset *ds, int64_t i, struct meg_batch *out, struct meg_err *e)
{
    const struct meg_masked_conf *c = &ds->masked_conf.conf;
    const struct meg_masked_vocab *v = &ds->masked_conf.vocab;
    const int64_t s = ds->masked_conf.seq_length;
    struct sentences x = { 0 };
    struct meg_masked_spans m = { 0 };
    struct segment a, b;
    int64_t n = 0, first_n;
    bool is_swapped;
    int r;

    MEG_ASSERT_EQ(c->type, MEG_MASKED_BERT);
    if ((r = load_sentences(&x, ds, i, e)) < 0)
        goto out;
    if ((c->has_pairs && x.nsentence < 2) || x.target > s - 3) {
        r = meg_dataset_cache_mismatch(ds, e);
        goto out;
    }
    is_swapped = choose_segments(&x, c->has_pairs, &a, &b);
    truncate_segments(&a, &b, x.target, &x.rng);
    out->tokens[n++] = v->cls;
    memcpy(out->tokens + n, a.v, (size_t)a.n * sizeof *a.v);
    n += a.n;
    out->tokens[n++] = v->sep;
    first_n = n;
    if (b.n > 0) {
        memcpy(out->tokens + n, b.v, (size_t)b.n * sizeof *b.v);
        n += b.n;
        out->tokens[n++] = v->sep;
    }
    meg_mask_tokens(&m, out->tokens, n, x.target, c, v, &x.rng);

    fill(out->tokens, n, s, v->pad);
    fill(out->labels, 0, s, -1);
    for (int64_t k = 0; k < s; k++) {
        out->position_ids[k] = (int32_t)k;
        out->loss_mask[k] = 0;
        if (out->token_types)
            out->token_types[k] = k >= first_n && k < n;
    }
    for (int64_t k = 0; k < m.n; k++) {
        out->labels[m.position[k]] = m.original[k];
        out->loss_mask[m.position[k]] = 1;
    }
    if (out->key_length)
        *out->key_length = (int32_t)n;
    if (out->sentence_order)
        *out->sentence_order = is_swapped;
out:
    meg_masked_spans_free(&m);
    free_sentences(&x);
    return r;
}

/* ---- T5 ----------------------------------------------------------------------------------------- */

/* A masked span of adjacent tokens, [begin, end) of the text. */
struct span {
    int32_t begin, end;
    int64_t n;
    const int32_t *original; /* [n] ids before masking */
};

static int by_begin(const void *a, const void *b)
{
    const struct span *x = a, *y = b;
    return x->begin < y->begin ? -1 : x->begin > y->begin;
}

static struct span *sorted_spans(const struct meg_masked_spans *m)
{
    struct span *s = meg_new((size_t)m->nspan * sizeof *s);

    for (int64_t k = 0; k < m->nspan; k++)
        s[k] = (struct span){ m->position[m->first[k]], m->position[m->first[k + 1] - 1] + 1,
                              m->first[k + 1] - m->first[k], m->original + m->first[k] };
    qsort(s, (size_t)m->nspan, sizeof *s, by_begin);
    return s;
}

static int check_decoder(const struct meg_dataset *ds, int64_t i, const struct meg_masked_spans *m, struct meg_err *e)
{
    const struct meg_masked_conf *c = &ds->masked_conf.conf;

    if (m->nspan > ds->masked_conf.vocab.nsentinel)
        return meg_fail(e, MEG_EUSAGE,
                        "%s: sample %" PRId64 " has %" PRId64 " masked spans, but the vocabulary has only %" PRId64
                        " sentinels; increase --vocab-extra-ids",
                        meg_source_name(ds->src), i, m->nspan, ds->masked_conf.vocab.nsentinel);
    if (1 + m->nspan + m->n > c->decoder_seq_length)
        return meg_fail(e, MEG_EUSAGE,
                        "%s: sample %" PRId64 " has %" PRId64 " decoder tokens, more than --decoder-seq-length %" PRId64
                        "; increase --decoder-seq-length",
                        meg_source_name(ds->src), i, 1 + m->nspan + m->n, c->decoder_seq_length);
    return 0;
}

static void write_t5_sample(struct meg_batch *out, const int32_t *tokens, int64_t n, const struct span *span,
                            int64_t nspan, const struct meg_masked_sample_conf *conf)
{
    const struct meg_masked_vocab *v = &conf->vocab;
    const int64_t s_enc = conf->seq_length, s = conf->conf.decoder_seq_length;
    int64_t at = 0, enc = 0, dec = 0;

    out->tokens[dec++] = v->bos;
    for (int64_t k = 0; k <= nspan; k++) {
        const int64_t next = k < nspan ? span[k].begin : n;

        memcpy(out->enc_tokens + enc, tokens + at, (size_t)(next - at) * sizeof *tokens);
        enc += next - at;
        if (k == nspan)
            break;
        out->enc_tokens[enc++] = v->sentinel[k];
        out->tokens[dec++] = v->sentinel[k];
        memcpy(out->tokens + dec, span[k].original, (size_t)span[k].n * sizeof *tokens);
        dec += span[k].n;
        at = span[k].end;
    }
    *out->enc_key_length = (int32_t)enc;
    fill(out->enc_tokens, enc, s_enc, v->pad);
    memcpy(out->labels, out->tokens + 1, (size_t)(dec - 1) * sizeof *tokens);
    out->labels[dec - 1] = v->eos;
    fill(out->labels, dec, s, -1);
    fill(out->tokens, dec, s, v->pad);
    for (int64_t k = 0; k < s_enc; k++)
        out->enc_position_ids[k] = (int32_t)k;
    for (int64_t k = 0; k < s; k++) {
        out->position_ids[k] = (int32_t)k;
        out->loss_mask[k] = k < dec;
    }
}

int meg_t5_batch(const struct meg_dataset *ds, int64_t i, struct meg_batch *out, struct meg_err *e)
{
    const struct meg_masked_sample_conf *c = &ds->masked_conf;
    struct sentences x = { 0 };
    struct meg_masked_spans m = { 0 };
    struct span *span;
    int64_t n;
    int r;

    MEG_ASSERT_EQ(c->conf.type, MEG_MASKED_T5);
    if ((r = load_sentences(&x, ds, i, e)) < 0)
        goto out;
    n = x.first[x.nsentence];
    n = n < x.target ? n : x.target;
    meg_mask_tokens(&m, x.tokens, n, x.target, &c->conf, &c->vocab, &x.rng);
    if ((r = check_decoder(ds, i, &m, e)) < 0)
        goto out;
    span = sorted_spans(&m);
    write_t5_sample(out, x.tokens, n, span, m.nspan, c);
    free(span);
out:
    meg_masked_spans_free(&m);
    free_sentences(&x);
    return r;
}
