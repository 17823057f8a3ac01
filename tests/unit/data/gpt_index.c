/* Document, sample and shuffle index of a GPT dataset. */
#include "data_util.h"

#include "data/gpt_index.h"
#include "data/blend/split.h"

static void the_number_of_epochs_follows_the_samples_needed(void **state)
{
    const struct meg_gpt_index_conf cut = { 10, 1, false };
    struct meg_gpt_index_sizes p;
    struct meg_err e;

    (void)state;
    assert_int_equal(meg_gpt_index_plan(&p, 5, 101, MEG_ONE_EPOCH, &cut, &e), 0);
    assert_true(p.epochs == 1 && p.samples == 10);
    assert_int_equal(meg_gpt_index_plan(&p, 5, 101, 10, &cut, &e), 0);
    assert_true(p.epochs == 1);
    /* 8 of 10 more samples are needed: from 80% on, the last epoch is shuffled with the others */
    assert_int_equal(meg_gpt_index_plan(&p, 5, 101, 18, &cut, &e), 0);
    assert_true(p.epochs == 2 && p.samples == 20 && !p.separate_last_epoch);
    assert_int_equal(meg_gpt_index_plan(&p, 5, 101, 17, &cut, &e), 0);
    assert_true(p.epochs == 2 && p.separate_last_epoch && p.samples_before_last_epoch == 10);
    /* fewer tokens than one sample; planning takes constant time for any number of samples */
    assert_int_equal(meg_gpt_index_plan(&p, 1, 1, 1000000000000, &cut, &e), 0);
    assert_true(p.epochs == 10000000000001);
    assert_int_equal(meg_gpt_index_plan(&p, 1, 1, INT64_MAX / 2, &cut, &e), MEG_EFORMAT);
}

static void samples_cover_the_stream_once(void **state)
{
    const int length[] = { 7, 1, 12, 3, 30, 2, 9 }; /* 64 tokens */
    const struct meg_gpt_index_conf cut = { 5, 1, false };
    struct meg_source *src;
    struct meg_gpt_index_sizes p;
    struct meg_gpt_index x;
    struct meg_err e;
    int64_t at = 0, k = 0, off = 0;
    int seen[12] = { 0 };

    (void)state;
    make_dataset("cover", length, 7);
    assert_int_equal(meg_source_open(&src, "cover", &e), 0);
    assert_int_equal(meg_gpt_index_plan(&p, 7, 64, MEG_ONE_EPOCH, &cut, &e), 0);
    assert_int_equal(p.samples, 12);
    meg_gpt_index_shape(&x, &p);
    meg_gpt_index_build(&x, &p, src, 0, &cut, 1234);
    for (int64_t s = 0; s <= x.nsample; s++) {
        int64_t k1, off1;
        meg_gpt_index_start(&x, s, &k1, &off1);
        for (; k < k1; off = 0)
            at += length[x.document[k++]] - off;
        at += off1 - off;
        off = off1;
        assert_int_equal(at, 5 * s);
    }
    for (int64_t i = 0; i < x.nsample; i++)
        seen[meg_gpt_index_shuffled(&x, i)]++;
    for (int i = 0; i < 12; i++)
        assert_int_equal(seen[i], 1);
    meg_gpt_index_free(&x);
    meg_source_close(src);
}

/* Document lengths are numpy.random.RandomState(0).randint(1, 4096, 100000); their sum is compared. */
static void mock_data_is_equal_on_every_machine(void **state)
{
    struct meg_source *m = meg_source_mock(50, 49);
    struct meg_err e;
    int32_t ids[4095];
    int32_t n = meg_source_length(m, 7);

    (void)state;
    assert_int_equal(meg_source_elements(m), 100000);
    assert_true(meg_source_tokens(m, 0, 100000) == 204561313);
    assert_int_equal(meg_source_get(m, 7, 0, n, ids, &e), 0);
    assert_true(ids[0] == 1 && ids[1] == 2 && ids[48] == 49 && ids[49] == 1 && ids[n - 1] == 49);
    meg_source_close(m);
}

/* The test sets the types of the arrays itself, since only a huge dataset requires int64. */
static void int64_arrays_have_the_same_numbers(void **state)
{
    const struct meg_gpt_index_conf cut = { 5, 1, false };
    const int length[] = { 7, 1, 12, 3, 30, 2, 9 };
    struct meg_source *src;
    struct meg_gpt_index_sizes p;
    struct meg_gpt_index x32, x64;
    struct meg_err e;

    (void)state;
    make_dataset("x64", length, 7);
    assert_int_equal(meg_source_open(&src, "x64", &e), 0);
    assert_int_equal(meg_gpt_index_plan(&p, 7, 64, 17, &cut, &e), 0);
    assert_true(p.separate_last_epoch);
    meg_gpt_index_shape(&x32, &p);
    meg_gpt_index_shape(&x64, &p);
    x64.is_sample_int64 = x64.is_shuffle_int64 = true;
    meg_gpt_index_build(&x32, &p, src, 0, &cut, 1234);
    meg_gpt_index_build(&x64, &p, src, 0, &cut, 1234);
    assert_memory_equal(x32.document, x64.document, (size_t)x32.ndocument * sizeof(int32_t));
    for (int64_t i = 0; i <= x32.nsample; i++) {
        const int32_t *n = x32.sample;
        const int64_t *w = x64.sample;
        int64_t k, off, wide_k, wide_off;

        assert_int_equal(w[2 * i], n[2 * i]);
        assert_int_equal(w[2 * i + 1], n[2 * i + 1]);
        meg_gpt_index_start(&x32, i, &k, &off);
        meg_gpt_index_start(&x64, i, &wide_k, &wide_off);
        assert_true(k == wide_k && off == wide_off);
    }
    for (int64_t i = 0; i < x32.nsample; i++) {
        assert_int_equal(((const int64_t *)x64.shuffle)[i], ((const uint32_t *)x32.shuffle)[i]);
        assert_int_equal(meg_gpt_index_shuffled(&x64, i), meg_gpt_index_shuffled(&x32, i));
    }
    meg_gpt_index_free(&x32);
    meg_gpt_index_free(&x64);
    meg_source_close(src);
}

/*
 * As in Megatron-LM, the sample index is int32 if the document index has fewer than 2^31 entries, and the shuffle
 * index is uint32 below 2^32 - 2 samples.  Otherwise they are int64.
 */
static void arrays_are_int64_from_megatrons_limits_on(void **state)
{
    struct meg_gpt_index_sizes p = { .elements = INT32_MAX, .epochs = 1, .samples = UINT32_MAX - 2 };
    struct meg_gpt_index x;

    (void)state;
    meg_gpt_index_shape(&x, &p);
    assert_true(x.ndocument == INT32_MAX && !x.is_sample_int64);
    assert_true(x.nsample == UINT32_MAX - 2 && !x.is_shuffle_int64);
    p.elements = 1 << 16;
    p.epochs = 1 << 15;
    p.samples++;
    meg_gpt_index_shape(&x, &p);
    assert_true(x.ndocument == INT64_C(1) << 31 && x.is_sample_int64);
    assert_true(x.nsample == UINT32_MAX - 1 && x.is_shuffle_int64);
}

/* Megatron-LM's code can keep a short last validation sample, but no option selects this. */
static bool keeps_partial(const json_t *c)
{
    return !get_int(c, "drop_last_partial_validation_sequence") && strcmp(get_str(c, "which"), "valid") == 0;
}

static void golden_arrays(void **state)
{
    json_t *all = golden_data("gpt/indices.json"), *c;
    size_t i;
    int compared = 0;

    (void)state;
    assert_int_equal(json_array_size(all), 48);
    copy_golden("tiny_text_document");
    json_array_foreach(all, i, c)
    {
        json_t *doc = json_object_get(c, "document_index"), *sample = json_object_get(c, "sample_index");
        json_t *shuffle = json_object_get(c, "shuffle_index"), *wanted = json_object_get(c, "num_samples");
        const char *which = get_str(c, "which");
        const struct meg_gpt_index_conf cut = { get_int(c, "sequence_length"), (int)get_int(c, "add_extra_token"),
                                                false };
        struct meg_source *src;
        struct meg_split_matrix split;
        struct meg_gpt_index_sizes p;
        struct meg_gpt_index x;
        struct meg_err e;
        int64_t begin, end;
        int w = 0;

        while (strcmp(meg_split_names[w], which) != 0)
            w++;
        if (keeps_partial(c))
            continue;
        compared++;
        assert_int_equal(meg_source_open(&src, get_str(c, "dataset"), &e), 0);
        assert_int_equal(meg_split_parse(&split, get_str(c, "split"), &e), 0);
        meg_split_range(&split, w, meg_source_elements(src), &begin, &end);
        assert_int_equal(begin, int_at(json_object_get(c, "document_range"), 0));
        assert_int_equal(end, int_at(json_object_get(c, "document_range"), 1));
        assert_int_equal(meg_gpt_index_plan(&p, end - begin, meg_source_tokens(src, begin, end),
                                            json_is_null(wanted) ? MEG_ONE_EPOCH : json_integer_value(wanted), &cut,
                                            &e),
                         0);
        assert_int_equal(p.tokens_per_epoch, get_int(c, "tokens_per_epoch"));
        assert_int_equal(p.epochs, get_int(c, "num_epochs"));
        meg_gpt_index_shape(&x, &p);
        meg_gpt_index_build(&x, &p, src, begin, &cut, (uint32_t)get_int(c, "seed"));
        assert_int_equal(x.nsample, get_int(c, "length"));
        assert_int_equal(x.ndocument, json_array_size(doc));
        assert_int_equal(x.nsample + 1, json_array_size(sample));
        for (int64_t k = 0; k < x.ndocument; k++)
            assert_int_equal(x.document[k], int_at(doc, (size_t)k));
        for (int64_t k = 0; k <= x.nsample; k++) {
            int64_t at, off;
            meg_gpt_index_start(&x, k, &at, &off);
            assert_int_equal(at, int_at(json_array_get(sample, (size_t)k), 0));
            assert_int_equal(off, int_at(json_array_get(sample, (size_t)k), 1));
        }
        for (int64_t k = 0; k < x.nsample; k++)
            assert_int_equal(meg_gpt_index_shuffled(&x, k), int_at(shuffle, (size_t)k));
        assert_string_equal(x.is_sample_int64 ? "int64" : "int32", get_str(c, "sample_index_dtype"));
        assert_string_equal(x.is_shuffle_int64 ? "int64" : "uint32", get_str(c, "shuffle_index_dtype"));
        meg_gpt_index_free(&x);
        meg_source_close(src);
    }
    assert_int_equal(compared, 45);
    json_decref(all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_number_of_epochs_follows_the_samples_needed),
        cmocka_unit_test(samples_cover_the_stream_once),
        cmocka_unit_test(mock_data_is_equal_on_every_machine),
        cmocka_unit_test(int64_arrays_have_the_same_numbers),
        cmocka_unit_test(arrays_are_int64_from_megatrons_limits_on),
        cmocka_unit_test(golden_arrays),
    };
    return cmocka_run_group_tests(tests, enter_scratch, leave_scratch);
}
