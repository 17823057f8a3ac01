/* --split, and the number of samples that a run reads from each split. */
#include "data_util.h"

#include "data/blend/split.h"

static void boundaries_are_rounded_half_to_even(void **state)
{
    struct meg_split_matrix s;
    struct meg_err e;
    int64_t b, end;

    (void)state;
    assert_int_equal(meg_split_parse(&s, "949,50,1", &e), 0);
    meg_split_range(&s, MEG_SPLIT_TRAIN, 100, &b, &end);
    assert_true(b == 0 && end == 95);
    meg_split_range(&s, MEG_SPLIT_VALID, 100, &b, &end);
    assert_true(b == 95 && end == 100);
    meg_split_range(&s, MEG_SPLIT_TEST, 100, &b, &end);
    assert_true(b == 100 && end == 100);
    assert_int_equal(meg_split_parse(&s, "1 / 1", &e), 0); /* the third weight is 0 */
    meg_split_range(&s, MEG_SPLIT_TRAIN, 5, &b, &end);
    assert_int_equal(end, 2); /* 2.5 is rounded to even */
    assert_false(s.is_present[MEG_SPLIT_TEST]);
}

static void quotes_and_punctuation_separate_numbers(void **state)
{
    const char *const text[] = { "'949,50,1'",    "\"949\" \"50\" \"1\"", "(949; 50; 1)",
                                 "[949.,50.0,1]", "949:50|1\n",           "949%,50%,1%" };
    struct meg_split_matrix want, s;
    struct meg_err e;

    (void)state;
    assert_int_equal(meg_split_parse(&want, "949,50,1", &e), 0);
    for (size_t i = 0; i < sizeof text / sizeof *text; i++) {
        if (meg_split_parse(&s, text[i], &e) < 0)
            fail_msg("%s", e.msg);
        assert_memory_equal(&s, &want, sizeof s);
    }
}

static void an_invalid_split_is_refused(void **state)
{
    struct meg_split_matrix s;
    struct meg_err e;

    (void)state;
    assert_int_equal(meg_split_parse(&s, "1,2,3,4", &e), MEG_EUSAGE);
    assert_string_equal(
        e.msg, "--split: '1,2,3,4' has more than three numbers; specify one for each of training, validation and test");
    assert_int_equal(meg_split_parse(&s, "1.2.3", &e), MEG_EUSAGE);
    assert_int_equal(meg_split_parse(&s, "all", &e), MEG_EUSAGE);
    assert_string_equal(
        e.msg, "--split: 'all' in 'all' is not a decimal number; specify up to three numbers, for example 949,50,1");
    assert_int_equal(meg_split_parse(&s, "0,0,0", &e), MEG_EUSAGE);
    assert_string_equal(e.msg, "--split: '0,0,0' has no number above 0; specify, for example, 949,50,1");
    assert_int_equal(meg_split_parse(&s, "", &e), MEG_EUSAGE);
    assert_int_equal(meg_split_parse(&s, "-99,1,0", &e), MEG_EUSAGE);
    assert_string_equal(e.msg, "--split: '-99,1,0' has a minus sign; ratios must be 0 or more");
}

/* Megatron-LM reads other numbers than the written ones, such as 0 and 10 in the first value. */
static void a_word_that_is_not_a_decimal_number_is_refused(void **state)
{
    static const char *const text[] = { "0x10,1", "nan,1,1", "1,inf", "1e2,1", "+9,1", ".,1", "a9,1" };
    struct meg_split_matrix s;
    struct meg_err e;

    (void)state;
    for (size_t i = 0; i < sizeof text / sizeof *text; i++)
        assert_int_equal(meg_split_parse(&s, text[i], &e), MEG_EUSAGE);
    assert_int_equal(meg_split_parse(&s, "nan,1,1", &e), MEG_EUSAGE);
    assert_string_equal(
        e.msg,
        "--split: 'nan' in 'nan,1,1' is not a decimal number; specify up to three numbers, for example 949,50,1");
}

static void samples_follow_iterations_and_evaluations(void **state)
{
    int64_t n[MEG_NUM_SPLITS];

    (void)state;
    meg_sample_counts(n, -1, 1000, 100, 10, 16);
    assert_true(n[0] == 16000 && n[1] == 1760 && n[2] == 160);
    meg_sample_counts(n, 999, 1000, 100, 10, 16);
    assert_int_equal(n[0], 999);
}

static void golden_splits(void **state)
{
    json_t *all = golden_data("splits/splits.json"), *c;
    size_t i;

    (void)state;
    assert_true(json_array_size(all) > 20);
    json_array_foreach(all, i, c)
    {
        json_t *matrix = json_object_get(c, "matrix"), *ranges = json_object_get(c, "ranges");
        struct meg_split_matrix s;
        struct meg_err e;
        int64_t b, end;

        assert_int_equal(meg_split_parse(&s, get_str(c, "split"), &e), 0);
        for (size_t k = 0; k < MEG_NUM_SPLITS; k++) {
            json_t *m = json_array_get(matrix, k), *r = json_array_get(ranges, k);
            assert_int_equal(s.is_present[k], !json_is_null(m));
            meg_split_range(&s, (int)k, get_int(c, "n"), &b, &end);
            if (json_is_null(m)) {
                assert_int_equal(b, end);
                continue;
            }
            assert_true(s.begin[k] == json_number_value(json_array_get(m, 0)));
            assert_true(s.end[k] == json_number_value(json_array_get(m, 1)));
            assert_int_equal(b, int_at(r, 0));
            assert_int_equal(end, int_at(r, 1));
        }
    }
    json_decref(all);
}

static void golden_sample_counts(void **state)
{
    json_t *all = golden_data("splits/sample_counts.json"), *c;
    size_t i;

    (void)state;
    assert_true(json_array_size(all) > 0);
    json_array_foreach(all, i, c)
    {
        int64_t n[MEG_NUM_SPLITS];
        meg_sample_counts(n, -1, get_int(c, "train_iters"), get_int(c, "eval_interval"), get_int(c, "eval_iters"),
                          get_int(c, "global_batch_size"));
        assert_int_equal(n[MEG_SPLIT_TRAIN], get_int(c, "train"));
        assert_int_equal(n[MEG_SPLIT_VALID], get_int(c, "valid"));
        assert_int_equal(n[MEG_SPLIT_TEST], get_int(c, "test"));
    }
    json_decref(all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(boundaries_are_rounded_half_to_even),
        cmocka_unit_test(quotes_and_punctuation_separate_numbers),
        cmocka_unit_test(an_invalid_split_is_refused),
        cmocka_unit_test(a_word_that_is_not_a_decimal_number_is_refused),
        cmocka_unit_test(samples_follow_iterations_and_evaluations),
        cmocka_unit_test(golden_splits),
        cmocka_unit_test(golden_sample_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
