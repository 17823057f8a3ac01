/* spec of the order: element order, then the walk over it, then the order of samples, all from one
 * generator.  Every count is int64: a trillion tokens times a few epochs still fits. */
#include "data/gpt_index.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/mem.h"
#include "base/mt19937.h"

int meg_gpt_index_plan(struct meg_gpt_index_sizes *p, int64_t elements, int64_t tokens_per_epoch, int64_t wanted,
                       const struct meg_gpt_index_conf *cut, struct meg_err *e)
{
    const int64_t tpe = tokens_per_epoch, t = cut->seq_length, x = cut->extra;
    int64_t need, have;

    MEG_ASSERT(tpe > 0 && t > 0 && wanted >= MEG_ONE_EPOCH);
    *p = (struct meg_gpt_index_sizes){ .elements = elements, .tokens_per_epoch = tpe, .epochs = 1 };
    if (wanted != MEG_ONE_EPOCH) {
        if (wanted > (INT64_MAX / 2 - tpe) / t)
            return meg_fail(e, MEG_EFORMAT,
                            "%" PRId64 " samples of %" PRId64 " tokens are more than can "
                            "be counted",
                            wanted, t);
        need = wanted * t + x;
        p->epochs = need <= tpe ? 1 : (need + tpe - 1) / tpe;
    }
    have = p->epochs * tpe - x;
    p->samples = have / t;
    if (p->epochs > 1) {
        int64_t per_epoch = (tpe - x) / t;
        p->before_last = ((p->epochs - 1) * tpe - x) / t;
        p->is_last_separate =
            wanted - p->before_last < (int64_t)((cut->is_deepspeed ? 0.95 : 0.80) * (double)per_epoch);
    }
    return 0;
}

void meg_gpt_index_shape(struct meg_gpt_index *x, const struct meg_gpt_index_sizes *p)
{
    *x = (struct meg_gpt_index){ .ndocument = p->elements * p->epochs, .nsample = p->samples };
    x->is_sample_wide = x->ndocument > INT32_MAX;
    x->is_shuffle_wide = x->nsample >= (int64_t)UINT32_MAX - 1;
}

static int32_t *build_document_index(const struct meg_gpt_index_sizes *p, int64_t begin, struct meg_mt19937 *rng)
{
    const int64_t n = p->elements * p->epochs, last = p->is_last_separate ? p->elements : 0;
    int32_t *doc = meg_realloc_array(NULL, (size_t)n, sizeof *doc);

    for (int64_t i = 0, k = 0; k < n; i = i + 1 < p->elements ? i + 1 : 0)
        doc[k++] = (int32_t)(begin + i);
    meg_mt19937_shuffle_i32(rng, doc, n - last);
    meg_mt19937_shuffle_i32(rng, doc + n - last, last);
    return doc;
}

struct walk {
    const struct meg_source *src;
    const int32_t *doc;
    int64_t ndoc, k, offset;
    int extra;
};

/* Move on to the beginning of the next sample: seq_length tokens further. */
static void step(struct walk *w, int64_t seq_length)
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
                                const struct meg_gpt_index_conf *cut)
{
    struct walk w = { src, x->document, x->ndocument, 0, 0, cut->extra };
    void *at = meg_realloc_array(NULL, (size_t)x->nsample + 1, x->is_sample_wide ? 16 : 8);
    int64_t *wide = at, s;
    int32_t *narrow = at;

    for (s = 0; s <= x->nsample; s++) {
        if (s > 0)
            step(&w, cut->seq_length);
        if (x->is_sample_wide) {
            wide[2 * s] = w.k;
            wide[2 * s + 1] = w.offset;
        } else {
            narrow[2 * s] = (int32_t)w.k;
            narrow[2 * s + 1] = (int32_t)w.offset;
        }
    }
    return at;
}

static void *build_shuffle_index(const struct meg_gpt_index *x, const struct meg_gpt_index_sizes *p,
                                 struct meg_mt19937 *rng)
{
    const int64_t n = x->nsample, first = p->is_last_separate ? p->before_last : n;
    void *order = meg_realloc_array(NULL, (size_t)n, x->is_shuffle_wide ? 8 : 4);
    int64_t *wide = order, i;
    uint32_t *narrow = order;

    if (x->is_shuffle_wide) {
        for (i = 0; i < n; i++)
            wide[i] = i;
        meg_mt19937_shuffle_i64(rng, wide, first);
        meg_mt19937_shuffle_i64(rng, wide + first, n - first);
    } else {
        for (i = 0; i < n; i++)
            narrow[i] = (uint32_t)i;
        meg_mt19937_shuffle_u32(rng, narrow, first);
        meg_mt19937_shuffle_u32(rng, narrow + first, n - first);
    }
    return order;
}

void meg_gpt_index_build(struct meg_gpt_index *x, const struct meg_gpt_index_sizes *p, const struct meg_source *src,
                         int64_t begin, const struct meg_gpt_index_conf *cut, uint32_t seed)
{
    struct meg_mt19937 rng;

    meg_mt19937_seed(&rng, seed);
    x->document = x->owned[0] = build_document_index(p, begin, &rng);
    x->sample = x->owned[1] = build_sample_index(x, src, cut);
    x->shuffle = x->owned[2] = build_shuffle_index(x, p, &rng);
}

void meg_gpt_index_free(struct meg_gpt_index *x)
{
    for (int i = 0; i < 3; i++)
        free(x->owned[i]);
    *x = (struct meg_gpt_index){ 0 };
}
