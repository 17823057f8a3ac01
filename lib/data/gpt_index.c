/*
 * gpt_index.c - build the document, sample and shuffle index.  As in Megatron-LM, one random generator shuffles the
 * elements and then the samples.
 */
#include "data/gpt_index.h"
#include <inttypes.h>
#include <stdlib.h>
#include "base/mem.h"
#include "data/mt19937.h"

int meg_gpt_index_plan(struct meg_gpt_index_sizes *p, int64_t elements, int64_t tokens_per_epoch, int64_t num_samples,
                       const struct meg_gpt_index_conf *conf, struct meg_err *e)
{
    const int64_t tpe = tokens_per_epoch, t = conf->seq_length, x = conf->add_extra_token;
    int64_t need, have;

    MEG_ASSERT(tpe > 0 && t > 0 && num_samples >= MEG_ONE_EPOCH);
    *p = (struct meg_gpt_index_sizes){ .elements = elements, .tokens_per_epoch = tpe, .epochs = 1 };
    if (num_samples != MEG_ONE_EPOCH) {
        if (num_samples > (INT64_MAX / 2 - tpe) / t)
            return meg_fail(e, MEG_EFORMAT,
                            "%" PRId64 " samples of %" PRId64 " tokens are requested, but at most %" PRId64
                            " samples are supported",
                            num_samples, t, (INT64_MAX / 2 - tpe) / t);
        need = num_samples * t + x;
        p->epochs = need <= tpe ? 1 : (need + tpe - 1) / tpe;
    }
    have = p->epochs * tpe - x;
    p->samples = have / t;
    if (p->epochs > 1) {
        int64_t per_epoch = (tpe - x) / t;
        p->samples_before_last_epoch = ((p->epochs - 1) * tpe - x) / t;
        p->separate_last_epoch = num_samples - p->samples_before_last_epoch <
                                 (int64_t)((conf->is_deepspeed ? 0.95 : 0.80) * (double)per_epoch);
    }
    return 0;
}

void meg_gpt_index_shape(struct meg_gpt_index *x, const struct meg_gpt_index_sizes *p)
{
    *x = (struct meg_gpt_index){ .ndocument = p->elements * p->epochs, .nsample = p->samples };
    x->is_sample_int64 = x->ndocument > INT32_MAX;
    x->is_shuffle_int64 = x->nsample >= (int64_t)UINT32_MAX - 1;
}

static int32_t *build_document_index(const struct meg_gpt_index_sizes *p, int64_t begin, struct meg_mt19937 *rng)
{
    const int64_t n = p->elements * p->epochs, last = p->separate_last_epoch ? p->elements : 0;
    int32_t *doc = meg_realloc_array(NULL, (size_t)n, sizeof *doc);

    for (int64_t i = 0, k = 0; k < n; i = i + 1 < p->elements ? i + 1 : 0)
        doc[k++] = (int32_t)(begin + i);
    meg_mt19937_shuffle_i32(rng, doc, n - last);
    meg_mt19937_shuffle_i32(rng, doc + n - last, last);
    return doc;
}

/* A position in the token stream: token `offset` of element doc[k]. */
struct cursor {
    const struct meg_source *src;
    const int32_t *doc;
    int64_t ndoc, k, offset;
    int extra;
};

/* Advance the cursor by seq_length tokens, to the beginning of the next sample. */
static void advance(struct cursor *w, int64_t seq_length)
{
    int64_t rest = seq_length + w->extra;

    for (;;) {
        int64_t left = meg_source_length(w->src, w->doc[w->k]) - w->offset;
        if (left >= rest) {
            w->offset += rest - w->extra;
            return;
        }
        rest -= left;
        w->k++;
        MEG_ASSERT(w->k < w->ndoc);
        w->offset = 0;
    }
}

static void *build_sample_index(const struct meg_gpt_index *x, const struct meg_source *src,
                                const struct meg_gpt_index_conf *conf)
{
    struct cursor w = { src, x->document, x->ndocument, 0, 0, conf->add_extra_token };
    void *at = meg_realloc_array(NULL, (size_t)x->nsample + 1, x->is_sample_int64 ? 16 : 8);
    int64_t *i64 = at, s;
    int32_t *i32 = at;

    for (s = 0; s <= x->nsample; s++) {
        if (s > 0)
            advance(&w, conf->seq_length);
        if (x->is_sample_int64) {
            i64[2 * s] = w.k;
            i64[2 * s + 1] = w.offset;
        } else {
            i32[2 * s] = (int32_t)w.k;
            i32[2 * s + 1] = (int32_t)w.offset;
        }
    }
    return at;
}

static void *build_shuffle_index(const struct meg_gpt_index *x, const struct meg_gpt_index_sizes *p,
                                 struct meg_mt19937 *rng)
{
    const int64_t n = x->nsample, first = p->separate_last_epoch ? p->samples_before_last_epoch : n;
    void *order = meg_realloc_array(NULL, (size_t)n, x->is_shuffle_int64 ? 8 : 4);
    int64_t *i64 = order, i;
    uint32_t *u32 = order;

    if (x->is_shuffle_int64) {
        for (i = 0; i < n; i++)
            i64[i] = i;
        meg_mt19937_shuffle_i64(rng, i64, first);
        meg_mt19937_shuffle_i64(rng, i64 + first, n - first);
    } else {
        for (i = 0; i < n; i++)
            u32[i] = (uint32_t)i;
        meg_mt19937_shuffle_u32(rng, u32, first);
        meg_mt19937_shuffle_u32(rng, u32 + first, n - first);
    }
    return order;
}

void meg_gpt_index_build(struct meg_gpt_index *x, const struct meg_gpt_index_sizes *p, const struct meg_source *src,
                         int64_t begin, const struct meg_gpt_index_conf *conf, uint32_t seed)
{
    struct meg_mt19937 rng;

    meg_mt19937_seed(&rng, seed);
    x->document = x->owned[0] = build_document_index(p, begin, &rng);
    x->sample = x->owned[1] = build_sample_index(x, src, conf);
    x->shuffle = x->owned[2] = build_shuffle_index(x, p, &rng);
}

void meg_gpt_index_free(struct meg_gpt_index *x)
{
    for (int i = 0; i < 3; i++)
        free(x->owned[i]);
    *x = (struct meg_gpt_index){ 0 };
}
