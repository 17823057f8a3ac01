/* Samples of the inverse cloze task, against numbers computed in Python from the rules in data/masked/ict.h. */
#include "data_util.h"

#include "data/gpt_index.h"
#include "data/masked/ict.h"

enum { T = 12, CLS = 101, SEP = 102, PAD = 103 };

/*
 * Create and open a dataset of n documents.  Document d has ndoc[d] sentences; length has the number of tokens of each
 * sentence of all documents.  All ids of sentence s of document d are 10 d + s.
 */
static struct meg_indexed *make(const char *prefix, const int *ndoc, const int *length, int n)
{
    struct meg_indexed_writer *w;
    struct meg_indexed *d;
    struct meg_err e;

    assert_int_equal(meg_indexed_create(&w, prefix, MEG_IDX_U16, &e), 0);
    for (int doc = 0, k = 0; doc < n; doc++) {
        for (int s = 0; s < ndoc[doc]; s++, k++) {
            int32_t ids[32];

            for (int i = 0; i < length[k]; i++)
                ids[i] = 10 * doc + s;
            assert_int_equal(meg_indexed_append(w, ids, length[k], &e), 0);
        }
        meg_indexed_end_document(w);
    }
    assert_int_equal(meg_indexed_commit(&w, 1, &e), 0);
    assert_int_equal(meg_indexed_open(&d, prefix, &e), 0);
    return d;
}

static void same(const int32_t *ids, const int32_t *mask, const char *want)
{
    char got[256] = "";

    for (int k = 0; k < T; k++) {
        assert_int_equal(mask[k], ids[k] != PAD);
        if (ids[k] != PAD)
            sprintf(got + strlen(got), ids[k] == CLS ? "[" : ids[k] == SEP ? "] " : "%d ", ids[k]);
    }
    assert_string_equal(got, want);
}

static void a_query_is_a_sentence_of_its_block(void **state)
{
    static const int sentences[] = { 3, 1, 4 }, lengths[] = { 4, 3, 4, 2, 3, 3, 4, 4 }, one[] = { 1, 1, 1 },
                     titles[] = { 2, 1, 1 };
    static const struct {
        const char *query, *context;
        int64_t block[4];
    } want[] = {
        { "[23 23 23 23 ] ", "[20 ] 23 23 23 23 ] ", { 7, 8, 2, 4 } },
        { "[20 20 20 ] ", "[20 ] 21 21 21 22 22 22 22 ] ", { 4, 7, 2, 3 } },
        { "[0 0 0 0 ] ", "[0 0 ] 1 1 1 ] ", { 0, 2, 0, 0 } },
        { "[23 23 23 23 ] ", "[20 ] 23 23 23 23 ] ", { 7, 8, 2, 4 } },
        { "[2 2 2 2 ] ", "[0 0 ] 2 2 2 2 ] ", { 2, 3, 0, 1 } },
        { "[0 0 0 0 ] ", "[0 0 ] 1 1 1 ] ", { 0, 2, 0, 0 } },
        { "[2 2 2 2 ] ", "[0 0 ] 2 2 2 2 ] ", { 2, 3, 0, 1 } },
        { "[10 10 ] ", "[10 ] ] ", { 3, 4, 1, 2 } },
        { "[10 10 ] ", "[10 ] 10 10 ] ", { 3, 4, 1, 2 } },
        { "[22 22 22 22 ] ", "[20 ] 20 20 20 21 21 21 22 22 ] ", { 4, 7, 2, 3 } },
    };
    struct meg_indexed *d = make("blocks", sentences, lengths, 3), *t = make("titles", one, titles, 3);
    struct meg_ict_conf c = { .seq_length = T,
                              .use_one_sent_docs = true,
                              .has_titles = true,
                              .query_in_block_prob = 0.5,
                              .num_samples = 6,
                              .seed = 1234,
                              .cls = CLS,
                              .sep = SEP,
                              .pad = PAD };
    int32_t a[4][T];
    struct meg_ict_sample got = { a[0], a[1], a[2], a[3], { 0 } };
    struct meg_mt19937 g;
    struct meg_ict *x;
    struct meg_err e;

    (void)state;
    if (meg_ict_open(&x, d, t, 0, 3, &c, &e) < 0)
        fail_msg("%s", e.msg);
    assert_int_equal(meg_ict_len(x), sizeof want / sizeof *want);
    meg_mt19937_seed_python(&g, 1234);
    for (int64_t i = 0; i < meg_ict_len(x); i++) {
        assert_int_equal(meg_ict_sample(x, i, &g, &got, &e), 0);
        assert_memory_equal(got.block, want[i].block, sizeof got.block);
        same(got.query, got.query_mask, want[i].query);
        same(got.context, got.context_mask, want[i].context);
    }
    meg_ict_close(x);
    c.has_titles = false;
    c.query_in_block_prob = 1;
    assert_int_equal(meg_ict_open(&x, d, t, 1, 2, &c, &e), 0);
    assert_int_equal(meg_ict_sample(x, 0, &g, &got, &e), 0);
    same(got.context, got.context_mask, "[10 10 ] ");
    meg_ict_close(x);
    meg_indexed_close(d);
    meg_indexed_close(t);
}

static void invalid_settings_and_titles_are_refused(void **state)
{
    static const int sentences[] = { 3, 1 }, lengths[] = { 4, 3, 4, 2 }, one[] = { 1, 1 }, titles[] = { 2, 10 };
    struct meg_indexed *d = make("blocks", sentences, lengths, 2), *t = make("titles", one, titles, 2);
    struct meg_ict_conf c = { .seq_length = 4, .has_titles = true, .num_samples = MEG_ONE_EPOCH };
    struct meg_ict *x = NULL;
    struct meg_err e;

    (void)state;
    assert_int_equal(meg_ict_open(&x, d, t, 0, 2, &c, &e), MEG_EUSAGE);
    c.seq_length = T;
    assert_int_equal(meg_ict_open(&x, d, t, 0, 2, &c, &e), MEG_EFORMAT);
    assert_string_equal(
        e.msg, "titles: the title of document 1 has 10 tokens, but at most 9 are allowed (--seq-length minus 3)");
    assert_int_equal(meg_ict_open(&x, d, t, 1, 2, &c, &e), MEG_EFORMAT);
    c.seq_length = 2 * T;
    assert_int_equal(meg_ict_open(&x, d, t, 1, 2, &c, &e), MEG_EFORMAT);
    assert_string_equal(
        e.msg, "blocks: none of the 1 documents yields a block; a block requires a document of at least 2 sentences, "
               "each of at most 512 tokens; preprocess the text with --split-sentences");
    assert_int_equal(meg_ict_open(&x, d, d, 0, 2, &c, &e), MEG_EFORMAT);
    assert_null(x);
    meg_indexed_close(d);
    meg_indexed_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_query_is_a_sentence_of_its_block),
        cmocka_unit_test(invalid_settings_and_titles_are_refused),
    };
    return cmocka_run_group_tests(tests, enter_scratch, leave_scratch);
}
