/* layer_pattern.c - patterns of layers in Megatron's notation, and the rules of options that use them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "model/layer_pattern.h"
#include "tiny_gpt.h"

static void lists_are_read_as_python_does(void **state)
{
    static const char *const cases[][2] = { { "4", "4" },
                                            { "1,1,0,1", "[1,1,0,1]" },
                                            { " 1, 1,0 ,1 ", "[1,1,0,1]" },
                                            { "[1,1,0,1]", "[1,1,0,1]" },
                                            { "[1] * 2 + [0,1]", "[1,1,0,1]" },
                                            { "([1]*1+[0]*1)*2", "[1,0,1,0]" },
                                            { "(([0])*2)*2", "[0,0,0,0]" } };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct meg_str s = { 0 };

        assert_int_equal(meg_layer_pattern_parse(&s, cases[i][0], 4, "x", NULL), 0);
        assert_string_equal(s.s, cases[i][1]);
        meg_str_free(&s);
    }
}

static void other_text_is_refused(void **state)
{
    static const char *const cases[] = { "",
                                         "0",
                                         "-1",
                                         "1,1,0",
                                         "1,1,0,1,1",
                                         "1,1,0,2",
                                         "[1,1,0,1",
                                         "1,1,0,1]",
                                         "1,,0,1",
                                         "1,1,0,1,",
                                         "[1]*4*9999999",
                                         "[1]*0",
                                         "[1]*-4",
                                         "[1]*5",
                                         "[1,1]+",
                                         "[]*4",
                                         "([1]*4",
                                         "[1]*4 x",
                                         "((((((((([1,1,0,1])))))))))" };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct meg_str s = { 0 };
        struct meg_err e;

        if (meg_layer_pattern_parse(&s, cases[i], 4, "some-option", &e) != MEG_EUSAGE)
            fail_msg("'%s' is read as %s", cases[i], s.s);
        assert_non_null(strstr(e.msg, "--some-option "));
        assert_non_null(strstr(e.msg, "4 layers"));
        meg_str_free(&s);
    }
}

static void a_number_selects_every_nth_layer(void **state)
{
    (void)state;
    for (int64_t i = 0; i < 9; i++) {
        assert_true(meg_layer_pattern_at("3", i, true) == (i % 3 == 2));
        assert_true(meg_layer_pattern_at("3", i, false) == (i % 3 != 2));
        assert_true(meg_layer_pattern_at("[1,1,0,1,1,0,1,1,0]", i, false) == (i % 3 != 2));
        assert_true(meg_layer_pattern_at("[1,1,0,1,1,0,1,1,0]", i, true) == (i % 3 != 2));
    }
}

/* Check that the options are refused with a message that contains `text`. */
static void refused(const char *options, const char *text)
{
    struct meg_model_conf c = tiny_gpt(4, 16, 16, 4, 8, 23);
    const struct meg_optgroup groups[] = { { "model", meg_model_opts, &c }, { 0 } };
    struct meg_err e;

    assert_int_equal(meg_opt_apply(groups, options, "test", &e), 0);
    if (meg_model_conf_check(&c, &e) != MEG_EUSAGE || !strstr(e.msg, text))
        fail_msg("%s: '%s' is not in the message: %s", options, text, e.msg);
}

static void values_that_break_a_rule_are_refused(void **state)
{
    (void)state;
    refused("window-size = 8\n", "--window-size 8: must be two integers");
    refused("window-size = 8,x\n", "--window-size 8,x: must be two integers");
    refused("window-size = 8,0,0\n", "--window-size 8,0,0: must be two integers");
    refused("window-size = 0,0\n", "--window-size 0,0: L must be -1");
    refused("window-size = -2,0\n", "--window-size -2,0: L must be -1");
    refused("window-size = 8,8\n", "--window-size 8,8: R must be 0 or -1");
    refused("window-attn-skip-freq = 2\n", "--window-attn-skip-freq: requires --window-size");
    refused("window-size = 8,0\nwindow-attn-skip-freq = 1,1\n", "--window-attn-skip-freq 1,1: must be a number");
    refused("no-rope-freq = 2\n", "--no-rope-freq 2: requires --position-embedding-type rope or yarn");
    refused("position-embedding-type = rope\nno-rope-freq = 0\n", "--no-rope-freq 0: must be a number");
    refused("position-embedding-type = rope\nrotary-base-window = 10\n", "--rotary-base-window 10: requires --window");
    refused("position-embedding-type = yarn\n", "requires --yarn-original-max-position-embeddings");
    refused("position-embedding-type = rope\nattn-temperature-beta = 1\n", "requires --attn-temperature-floor");
    refused("position-embedding-type = rope\nrope-long-factors = 1,2\n", "must be given together");
    refused("position-embedding-type = rope\nrope-long-factors = 1,2,3\nrope-short-factors = 1,2\n"
            "rope-original-max-position-embeddings = 4\n",
            "--rope-long-factors: must be 2 positive numbers");
    refused("position-embedding-type = rope\nrope-long-factors = 1,2\nrope-short-factors = 1,\n"
            "rope-original-max-position-embeddings = 4\n",
            "--rope-short-factors: must be 2 positive numbers");
    refused("position-embedding-type = rope\nuse-rope-scaling = yes\nrope-scaling-low-freq-factor = 4\n",
            "must be above --rope-scaling-low-freq-factor 4");
    refused("model = bert\nwindow-size = 8,0\n", "--window-size 8,0 is not supported; use --model gpt");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists_are_read_as_python_does),
        cmocka_unit_test(other_text_is_refused),
        cmocka_unit_test(a_number_selects_every_nth_layer),
        cmocka_unit_test(values_that_break_a_rule_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
