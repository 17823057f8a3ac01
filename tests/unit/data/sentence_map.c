/* Sentence maps (BERT, T5) from samples to sentences, against those of Megatron-LM's helper. */
#include "data_util.h"

#include "data/masked/sentence_map.h"

/* Create and open a dataset of sequences of these lengths, with all tokens 0 and the document index docs. */
static struct meg_indexed *dataset(const char *prefix, const json_t *lengths, const json_t *docs)
{
    struct meg_indexed_writer *w;
    struct meg_indexed *d;
    struct meg_err e;
    int32_t *zeros = calloc(10000, sizeof *zeros);
    size_t seq = 0;

    assert_int_equal(meg_indexed_create(&w, prefix, MEG_IDX_U16, &e), 0);
    for (size_t i = 1; i < json_array_size(docs); i++) {
        for (; seq < (size_t)int_at(docs, i); seq++)
            assert_int_equal(indexed_append(w, zeros, int_at(lengths, seq), &e), 0);
        meg_indexed_end_document(w);
    }
    assert_int_equal(meg_indexed_commit(&w, 1, &e), 0);
    assert_int_equal(meg_indexed_open(&d, prefix, &e), 0);
    free(zeros);
    return d;
}

static struct meg_indexed *made(const char *prefix, const char *lengths, const char *docs)
{
    json_t *l = json_loads(lengths, 0, NULL), *x = json_loads(docs, 0, NULL);
    struct meg_indexed *d = dataset(prefix, l, x);

    json_decref(l);
    json_decref(x);
    return d;
}

static void same_rows(const struct meg_sentence_map *m, const json_t *want)
{
    assert_int_equal(m->n, json_array_size(want));
    for (int64_t i = 0; i < m->n; i++)
        for (int k = 0; k < MEG_SENTENCE_MAP_COLUMNS; k++)
            assert_int_equal(meg_sentence_map_at(m, i, k), int_at(json_array_get(want, (size_t)i), (size_t)k));
}

static void an_epoch_without_samples_is_the_last(void **state)
{
    struct meg_indexed *d = made("none", "[3, 600, 2]", "[0, 1, 3, 3]");
    struct meg_sentence_map_conf c = { 10, 2, 0, MEG_UNLIMITED_EPOCHS, 50, 1 };
    struct meg_sentence_map m;

    (void)state;
    meg_sentence_map_build(&m, d, 0, 3, &c); /* a document of one sentence, one with a long sentence, an empty one */
    assert_int_equal(m.n, 0);
    meg_sentence_map_free(&m);
    c.min_sentences = 1;
    c.max_epochs = 1;
    meg_sentence_map_build(&m, d, 0, 3, &c);
    assert_int_equal(m.n, 1);
    meg_sentence_map_free(&m);
    c.max_epochs = MEG_UNLIMITED_EPOCHS;
    c.max_samples = 7;
    meg_sentence_map_build(&m, d, 0, 3, &c);
    assert_int_equal(m.n, 7);
    meg_sentence_map_free(&m);
    meg_sentence_map_build(&m, d, 1, 3, &c);
    assert_int_equal(m.n, 0);
    meg_sentence_map_free(&m);
    meg_indexed_close(d);
}

static void a_document_of_one_sentence_may_be_long(void **state)
{
    struct meg_indexed *d = made("one", "[600]", "[0, 1]");
    const struct meg_sentence_map_conf c = { 10, 1, 0, 1, 50, 1 };
    struct meg_sentence_map m;

    (void)state;
    meg_sentence_map_build(&m, d, 0, 1, &c);
    assert_int_equal(m.n, 1);
    meg_sentence_map_free(&m);
    meg_indexed_close(d);
}

static void maps_equal_megatrons(void **state)
{
    json_t *all = golden_data("masked/build_mapping.json"), *x;
    size_t i;

    (void)state;
    assert_true(json_array_size(all) >= 20);
    json_array_foreach(all, i, x)
    {
        const json_t *docs = json_object_get(x, "docs");
        struct meg_indexed *d = dataset("map", json_object_get(x, "sizes"), docs);
        const struct meg_sentence_map_conf c = { get_int(x, "max_seq_length"),
                                                 (int)get_int(x, "min_num_sent"),
                                                 json_number_value(json_object_get(x, "short_seq_prob")),
                                                 get_int(x, "num_epochs"),
                                                 get_int(x, "max_num_samples"),
                                                 (uint32_t)get_int(x, "seed") };
        struct meg_sentence_map m;

        meg_sentence_map_build(&m, d, 0, (int64_t)json_array_size(docs) - 1, &c);
        same_rows(&m, json_object_get(x, "mapping"));
        meg_sentence_map_free(&m);
        meg_indexed_close(d);
    }
    json_decref(all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_epoch_without_samples_is_the_last),
        cmocka_unit_test(a_document_of_one_sentence_may_be_long),
        cmocka_unit_test(maps_equal_megatrons),
    };
    return cmocka_run_group_tests(tests, enter_scratch, leave_scratch);
}
