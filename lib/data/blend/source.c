/* source.c - a source of token sequences: a dataset file, or the generated tokens of --mock-data. */
#include "data/blend/source.h"
#include <inttypes.h>
#include <stdlib.h>
#include "base/mem.h"
#include "data/mt19937.h"

enum { MOCK_ELEMENTS = 100000, MOCK_LONGEST = 4095 };

struct meg_source {
    struct meg_indexed *file; /* NULL: mock data */
    int32_t *mock_length;
    int64_t mock_ids; /* ids other than eod are in [1, mock_ids) */
    int32_t eod;
};

int meg_source_open(struct meg_source **out, const char *prefix, struct meg_err *e)
{
    struct meg_source *s = meg_new(sizeof *s);
    enum meg_idx_dtype t;
    int r;

    if ((r = meg_indexed_open(&s->file, prefix, e)) < 0)
        goto out;
    t = s->file->dtype;
    if (t == MEG_IDX_F32 || t == MEG_IDX_F64) {
        r = meg_fail(e, MEG_EFORMAT, "%s.idx: contains %s, not token ids", prefix, meg_idx_dtype_name(t));
        goto out;
    }
    if (s->file->sequences == 0 || s->file->sequences > INT32_MAX) {
        r = meg_fail(e, MEG_EFORMAT, "%s.idx: %" PRId64 " sequences, expected 1 to %d", prefix, s->file->sequences,
                     INT32_MAX);
        goto out;
    }
    *out = s;
    s = NULL;
out:
    meg_source_close(s);
    return r;
}

struct meg_source *meg_source_mock(int64_t vocab_size, int32_t eod)
{
    struct meg_source *s = meg_new(sizeof *s);
    struct meg_mt19937 rng;

    s->mock_length = meg_realloc_array(NULL, MOCK_ELEMENTS, sizeof *s->mock_length);
    s->mock_ids = vocab_size > 2 ? vocab_size : 2;
    s->eod = eod >= 0 ? eod : 0;
    meg_mt19937_seed(&rng, 0);
    for (int i = 0; i < MOCK_ELEMENTS; i++)
        s->mock_length[i] = 1 + (int32_t)meg_mt19937_interval(&rng, MOCK_LONGEST - 1);
    return s;
}

void meg_source_close(struct meg_source *s)
{
    if (!s)
        return;
    meg_indexed_close(s->file);
    free(s->mock_length);
    free(s);
}

const char *meg_source_name(const struct meg_source *s)
{
    return s->file ? s->file->prefix : "mock data";
}

const struct meg_indexed *meg_source_indexed(const struct meg_source *s)
{
    return s->file;
}

int64_t meg_source_elements(const struct meg_source *s)
{
    return s->file ? s->file->sequences : MOCK_ELEMENTS;
}

int32_t meg_source_length(const struct meg_source *s, int64_t element)
{
    return s->file ? meg_indexed_length(s->file, element) : s->mock_length[element];
}

int64_t meg_source_tokens(const struct meg_source *s, int64_t begin, int64_t end)
{
    int64_t sum = 0;
    for (int64_t i = begin; i < end; i++)
        sum += meg_source_length(s, i);
    return sum;
}

int meg_source_get(const struct meg_source *s, int64_t element, int64_t offset, int64_t n, int32_t *out,
                   struct meg_err *e)
{
    if (s->file)
        return meg_indexed_get(s->file, element, offset, n, out, e);
    for (int64_t i = 0; i < n; i++)
        out[i] = offset + i == s->mock_length[element] - 1 ? s->eod : (int32_t)(1 + (offset + i) % (s->mock_ids - 1));
    return 0;
}
