/* eval/ppl.h: the windows score every target once and equal those of Megatron. */
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

#include "eval/ppl.h"
#include "reference.h"

static void every_target_is_scored_once(void **state)
{
    (void)state;
    for (int64_t tokens = 1; tokens < 60; tokens++)
        for (int64_t s = 1; s < 20; s++)
            for (int64_t stride = 1; stride <= s; stride++) {
                int64_t next = 1; /* the next target */
                for (int64_t i = 0; i < meg_window_count(tokens, stride); i++) {
                    struct meg_window w = meg_window_at(tokens, s, stride, i);
                    assert_int_equal(w.start, i * stride);
                    assert_in_range(w.ntok, 1, s + 1);
                    assert_true(w.start + w.ntok <= tokens);
                    if (w.ntargets > 0) {
                        assert_int_equal(w.start + w.first + 1, next);
                        assert_true(w.first + w.ntargets < w.ntok);
                        next += w.ntargets;
                    }
                }
                assert_int_equal(next, tokens);
            }
}

static void equals_megatron(void **state)
{
    json_t *root, *x, *want;
    size_t i, k;

    (void)state;
    assert_non_null(root = json_load_file(golden("eval/lm_windows.json"), 0, NULL));
    assert_true(json_array_size(root) > 0);
    json_array_foreach(root, i, x)
    {
        int64_t tokens = json_integer_value(json_object_get(x, "num_tokens"));
        int64_t s = json_integer_value(json_object_get(x, "seq_len"));
        int64_t stride = json_integer_value(json_object_get(x, "overlap"));
        const json_t *windows = json_object_get(x, "windows");
        assert_int_equal(meg_window_count(tokens, stride), json_array_size(windows));
        json_array_foreach(windows, k, want)
        {
            struct meg_window w = meg_window_at(tokens, s, stride, (int64_t)k);
            assert_int_equal(w.start, json_integer_value(json_object_get(want, "start")));
            assert_int_equal(w.ntok, json_integer_value(json_object_get(want, "ntok")));
            assert_int_equal(w.ntargets, json_integer_value(json_object_get(want, "scored")));
            if (w.ntargets > 0)
                assert_int_equal(w.first, json_integer_value(json_object_get(want, "first_scored")));
        }
    }
    json_decref(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_target_is_scored_once),
        cmocka_unit_test(equals_megatron),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
