/* sentence_map.c - the map from samples of BERT and T5 to sentences. */
#include "data/masked/sentence_map.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "data/mt19937.h"

void meg_sentence_map_shape(struct meg_sentence_map *m, const struct meg_indexed *d)
{
    *m = (struct meg_sentence_map){ .is_uint64 = d->sequences > UINT32_MAX };
}

void meg_sentence_map_free(struct meg_sentence_map *m)
{
    free(m->owned);
    *m = (struct meg_sentence_map){ 0 };
}

/* ---- rows --------------------------------------------------------------------------------------- */

static size_t row_size(const struct meg_sentence_map *m)
{
    return MEG_SENTENCE_MAP_COLUMNS * (m->is_uint64 ? 8u : 4u);
}

static void add_row(struct meg_sentence_map *m, int64_t *cap, const int64_t *row)
{
    m->row = m->owned = meg_grow(m->owned, m->n, cap, row_size(m));
    for (int64_t k = 0, at = m->n * MEG_SENTENCE_MAP_COLUMNS; k < MEG_SENTENCE_MAP_COLUMNS; k++, at++) {
        if (m->is_uint64)
            ((uint64_t *)m->owned)[at] = (uint64_t)row[k];
        else
            ((uint32_t *)m->owned)[at] = (uint32_t)row[k];
    }
    m->n++;
}

static void shuffle(struct meg_sentence_map *m, uint32_t seed)
{
    const size_t size = row_size(m);
    unsigned char *rows = m->owned, t[MEG_SENTENCE_MAP_COLUMNS * 8];
    struct meg_mt19937_64 g;

    meg_mt19937_64_seed(&g, (uint64_t)seed + 1);
    for (int64_t i = m->n - 1; i > 0; i--) {
        const uint64_t j = meg_mt19937_64_u64(&g) % ((uint64_t)i + 1);

        memcpy(t, rows + (size_t)i * size, size);
        memcpy(rows + (size_t)i * size, rows + j * size, size);
        memcpy(rows + j * size, t, size);
    }
}

/* ---- building ----------------------------------------------------------------------------------- */

/* State of building a sentence map. */
struct map_builder {
    struct meg_sentence_map *m;
    int64_t cap;
    const struct meg_indexed *d;
    const struct meg_sentence_map_conf *c;
    struct meg_mt19937 g;
    uint32_t ratio; /* on average, one sample in `ratio` has a reduced target length; 0: none */
};

static int64_t draw_target(struct map_builder *g)
{
    const int64_t max = g->c->max_length;
    uint32_t v;

    if (g->ratio == 0)
        return max;
    v = meg_mt19937_u32(&g->g);
    return v % g->ratio == 0 ? 2 + v % (max - 1) : max;
}

static bool is_usable(const struct map_builder *g, int64_t first, int64_t last)
{
    if (last - first < g->c->min_sentences)
        return false;
    if (last - first == 1)
        return true;
    for (int64_t s = first; s < last; s++)
        if (meg_indexed_length(g->d, s) > MEG_LONG_SENTENCE)
            return false;
    return true;
}

static void add_document(struct map_builder *g, int64_t doc)
{
    const int64_t last = meg_indexed_document(g->d, doc + 1);
    int64_t start = meg_indexed_document(g->d, doc), target, length = 0, count = 0;

    if (!is_usable(g, start, last))
        return;
    target = draw_target(g);
    for (int64_t s = start; s < last; s++) {
        const int64_t left = last - s - 1;

        length += meg_indexed_length(g->d, s);
        count++;
        if (left > 0 && (length < target || left < 2 || count < g->c->min_sentences))
            continue;
        add_row(g->m, &g->cap, (const int64_t[]){ start, s + 1, target });
        start = s + 1;
        target = draw_target(g); /* drawn even after the last row, as in Megatron-LM */
        length = count = 0;
    }
}

void meg_sentence_map_build(struct meg_sentence_map *m, const struct meg_indexed *d, int64_t begin, int64_t end,
                            const struct meg_sentence_map_conf *c)
{
    struct map_builder g = { .m = m, .d = d, .c = c };
    int64_t before = -1;

    MEG_ASSERT(c->max_length >= 2 && c->max_length <= INT32_MAX);
    meg_sentence_map_shape(m, d);
    meg_mt19937_seed(&g.g, c->seed);
    g.ratio = c->short_seq_prob > 0 ? (uint32_t)round(1 / c->short_seq_prob) : 0;
    for (int64_t i = 0; i < c->max_epochs && m->n < c->max_samples && m->n > before; i++) {
        before = m->n;
        for (int64_t doc = begin; doc < end; doc++)
            add_document(&g, doc);
    }
    shuffle(m, c->seed);
}

bool meg_sentence_map_matches_range(const struct meg_sentence_map *m, const struct meg_indexed *d, int64_t begin,
                                    int64_t end, const struct meg_sentence_map_conf *c)
{
    const struct map_builder g = { .d = d, .c = c };
    int64_t first = INT64_MAX, last = 0;

    for (int64_t i = 0; i < m->n; i++) {
        first = meg_sentence_map_at(m, i, 0) < first ? meg_sentence_map_at(m, i, 0) : first;
        last = meg_sentence_map_at(m, i, 1) > last ? meg_sentence_map_at(m, i, 1) : last;
    }
    while (begin < end && !is_usable(&g, meg_indexed_document(d, begin), meg_indexed_document(d, begin + 1)))
        begin++;
    while (begin < end && !is_usable(&g, meg_indexed_document(d, end - 1), meg_indexed_document(d, end)))
        end--;
    return begin < end && first == meg_indexed_document(d, begin) && last == meg_indexed_document(d, end);
}
