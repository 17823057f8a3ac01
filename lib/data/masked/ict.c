/* ict.c - samples of the inverse cloze task. */
#include "data/masked/ict.h"
#include <inttypes.h>
#include <stdlib.h>
#include "base/mem.h"
#include "data/gpt_index.h"

struct meg_ict {
    const struct meg_indexed *d, *titles;
    struct meg_ict_conf c;
    struct meg_sentence_map blocks;
};

static int check_titles(const struct meg_indexed *titles, int64_t begin, int64_t end, int64_t max, struct meg_err *e)
{
    for (int64_t i = begin; i < end; i++)
        if (meg_indexed_length(titles, i) > max)
            return meg_fail(e, MEG_EFORMAT,
                            "%s: the title of document %" PRId64 " has %" PRId32 " tokens, but at most %" PRId64
                            " are allowed (--seq-length minus 3)",
                            meg_indexed_prefix(titles), i, meg_indexed_length(titles, i), max);
    return 0;
}

int meg_ict_open(struct meg_ict **out, const struct meg_indexed *d, const struct meg_indexed *titles, int64_t begin,
                 int64_t end, const struct meg_ict_conf *c, struct meg_err *e)
{
    const bool is_all = c->num_samples == MEG_ONE_EPOCH;
    const struct meg_sentence_map_conf map_conf = { .max_length = c->seq_length - 3,
                                                    .min_sentences = c->use_one_sent_docs ? 1 : 2,
                                                    .max_epochs = is_all ? 1 : MEG_UNLIMITED_EPOCHS,
                                                    .max_samples = is_all ? INT64_MAX : c->num_samples,
                                                    .seed = c->seed };
    struct meg_ict *x;
    int r;

    if (c->seq_length < 5 || c->seq_length > INT32_MAX)
        return meg_fail(e, MEG_EUSAGE, "--seq-length %" PRId64 ": must be from 5 to %d", c->seq_length, INT32_MAX);
    x = meg_new(sizeof *x);
    *x = (struct meg_ict){ d, titles, *c, { 0 } };
    if ((r = meg_block_map_build(&x->blocks, d, titles, begin, end, &map_conf, e)) < 0 ||
        (c->has_titles && (r = check_titles(titles, begin, end, c->seq_length - 3, e)) < 0))
        goto out;
    if (x->blocks.n == 0) {
        r = meg_fail(e, MEG_EFORMAT,
                     "%s: none of the %" PRId64
                     " documents yields a block; a block requires a document of at least %d sentence%s, each of at "
                     "most %d tokens; preprocess the text with --split-sentences",
                     meg_indexed_prefix(d), end - begin, map_conf.min_sentences, map_conf.min_sentences == 1 ? "" : "s",
                     MEG_LONG_SENTENCE);
        goto out;
    }
    *out = x;
    x = NULL;
out:
    meg_ict_close(x);
    return r;
}

void meg_ict_close(struct meg_ict *x)
{
    if (!x)
        return;
    meg_sentence_map_free(&x->blocks);
    free(x);
}

int64_t meg_ict_len(const struct meg_ict *x)
{
    return x->blocks.n;
}

/* Ids of a query or a context.  cap is the capacity without the final SEP. */
struct id_row {
    int32_t *ids;
    int64_t n, cap;
};

static void put(struct id_row *to, int32_t id)
{
    to->ids[to->n++] = id;
}

/* Append a sequence, truncated so that the row has at most cap ids. */
static int put_sequence(struct id_row *to, const struct meg_indexed *d, int64_t s, struct meg_err *e)
{
    const int64_t length = meg_indexed_length(d, s), max = to->cap - to->n;
    const int64_t n = length < max ? length : max;
    const int r = meg_indexed_get(d, s, 0, n, to->ids + to->n, e);

    to->n += n;
    return r;
}

static void pad(const struct id_row *row, int32_t *mask, const struct meg_ict_conf *c)
{
    for (int64_t k = 0; k < c->seq_length; k++)
        mask[k] = k < row->n;
    for (int64_t k = row->n; k < c->seq_length; k++)
        row->ids[k] = c->pad;
}

int meg_ict_sample(const struct meg_ict *x, int64_t i, struct meg_mt19937 *g, struct meg_ict_sample *out,
                   struct meg_err *e)
{
    const struct meg_ict_conf *c = &x->c;
    struct id_row query = { out->query, 0, c->seq_length - 1 }, context = { out->context, 0, c->seq_length - 1 };
    int64_t first, last, query_seq;
    bool keeps_query;
    int r;

    MEG_ASSERT(i >= 0 && i < x->blocks.n);
    for (int k = 0; k < 4; k++)
        out->block[k] = meg_sentence_map_at(&x->blocks, i, k);
    first = out->block[0];
    last = out->block[1];
    query_seq = first + meg_python_randrange(g, last - first);
    keeps_query = meg_mt19937_double(g) < c->query_in_block_prob;
    put(&query, c->cls);
    if ((r = put_sequence(&query, x->d, query_seq, e)) < 0)
        return r;
    put(&query, c->sep);
    put(&context, c->cls);
    if (c->has_titles) {
        if ((r = put_sequence(&context, x->titles, out->block[2], e)) < 0)
            return r;
        put(&context, c->sep);
    }
    for (int64_t s = first; s < last; s++)
        if ((s != query_seq || keeps_query) && (r = put_sequence(&context, x->d, s, e)) < 0)
            return r;
    put(&context, c->sep);
    pad(&query, out->query_mask, c);
    pad(&context, out->context_mask, c);
    return 0;
}
