/*
 * The loss scale equals values printed by Megatron's own module (tests/data/golden/schedules).  Other tests check the
 * options of mixed precision, and the state of the loss scaler in a checkpoint.
 */
#include <math.h>
#include <string.h>
#include "option/opt.h"
#include "golden.h"
#include "run/precision.h"

static double num(const json_t *o, const char *key)
{
    return json_number_value(json_object_get(o, key));
}

static struct meg_precision_conf defaults(void)
{
    struct meg_precision_conf c;
    const struct meg_optgroup groups[] = { { "precision", meg_precision_opts, &c }, { 0 } };

    meg_opt_defaults(groups);
    return c;
}

static void check_rows(const json_t *all)
{
    const json_t *one, *row;
    size_t i, k;

    assert_true(json_array_size(all) >= 5);
    json_array_foreach(all, i, one)
    {
        const json_t *config = json_object_get(one, "config"), *rows = json_object_get(one, "rows");
        struct meg_precision_conf c = defaults();
        struct meg_precision p;
        struct meg_scaler s;

        assert_true(num(config, "growth_factor") == 2 && num(config, "backoff_factor") == 0.5);
        c.fp16 = true;
        c.initial_loss_scale = num(config, "initial_scale");
        c.min_loss_scale = num(config, "min_scale");
        c.loss_scale_window = (int64_t)num(config, "growth_interval");
        c.hysteresis = (int64_t)num(config, "hysteresis");
        assert_int_equal(meg_precision_make(&p, &s, &c, NULL), 0);
        assert_true(json_array_size(rows) > 50);
        json_array_foreach(rows, k, row)
        {
            const bool overflowed = json_integer_value(json_array_get(row, 0)) != 0;

            assert_int_equal(meg_scaler_update(&s, overflowed), overflowed);
            assert_true(s.scale == json_number_value(json_array_get(row, 1)));
            assert_int_equal(s.growth_tracker, json_integer_value(json_array_get(row, 2)));
            assert_int_equal(s.hysteresis_tracker, json_integer_value(json_array_get(row, 3)));
        }
    }
}

static void equals_megatron_on_all_reference_rows(void **state)
{
    json_t *all = golden_json("schedules/loss_scaler.json");

    (void)state;
    check_rows(all);
    json_decref(all);
}

static void constant_scale_never_changes(void **state)
{
    struct meg_precision_conf c = defaults();
    struct meg_precision p;
    struct meg_scaler s;

    (void)state;
    assert_int_equal(meg_precision_make(&p, &s, &c, NULL), 0);
    assert_true(s.type == MEG_SCALER_NONE && s.scale == 1 && !meg_scaler_update(&s, true) && !meg_scaler_pack(&s));
    c.bf16 = true;
    assert_int_equal(meg_precision_make(&p, &s, &c, NULL), 0);
    assert_true(s.type == MEG_SCALER_NONE);
    c.loss_scale = 1024;
    assert_int_equal(meg_precision_make(&p, &s, &c, NULL), 0);
    assert_true(s.type == MEG_SCALER_CONSTANT && s.scale == 1024 && !meg_scaler_update(&s, false) &&
                meg_scaler_update(&s, true) && s.scale == 1024 && !meg_scaler_pack(&s));
    c.bf16 = false;
    c.fp16 = true;
    c.loss_scale = 0;
    assert_int_equal(meg_precision_make(&p, &s, &c, NULL), 0);
    assert_true(s.type == MEG_SCALER_DYNAMIC && s.scale == 4294967296.0 && s.hysteresis_tracker == 2);
}

static void dtypes_follow_from_the_options(void **state)
{
    static const struct {
        bool fp16, bf16, accumulate, residual;
        struct meg_precision want;
    } cases[] = {
        { 0, 0, 0, 0, { MEG_DTYPE_F32, MEG_DTYPE_F32, MEG_DTYPE_F32 } },
        { 0, 0, 1, 0, { MEG_DTYPE_F32, MEG_DTYPE_F32, MEG_DTYPE_F32 } },
        { 1, 0, 0, 0, { MEG_DTYPE_F16, MEG_DTYPE_F16, MEG_DTYPE_F16 } },
        { 1, 0, 1, 1, { MEG_DTYPE_F16, MEG_DTYPE_F32, MEG_DTYPE_F32 } },
        { 0, 1, 0, 0, { MEG_DTYPE_BF16, MEG_DTYPE_BF16, MEG_DTYPE_F32 } },
        { 0, 1, 1, 1, { MEG_DTYPE_BF16, MEG_DTYPE_F32, MEG_DTYPE_F32 } },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct meg_precision_conf c = defaults();
        struct meg_precision p;
        struct meg_scaler s;

        c.fp16 = cases[i].fp16;
        c.bf16 = cases[i].bf16;
        c.accumulate_in_fp32 = cases[i].accumulate;
        c.fp32_residual = cases[i].residual;
        assert_int_equal(meg_precision_make(&p, &s, &c, NULL), 0);
        assert_memory_equal(&p, &cases[i].want, sizeof p);
    }
}

static void refuses_contradictory_options(void **state)
{
    static const struct {
        const char *args[5], *message;
    } cases[] = {
        { { "--fp16", "--bf16" }, "--fp16 cannot be combined with --bf16" },
        { { "--fp32-residual-connection" }, "--fp32-residual-connection: requires --fp16 or --bf16" },
        { { "--loss-scale", "8" }, "--loss-scale 8: requires --fp16 or --bf16" },
        { { "--fp16", "--loss-scale", "-1" }, "--loss-scale -1: must be 0 or more" },
        { { "--fp16", "--initial-loss-scale", "0" }, "--initial-loss-scale 0: must be above 0" },
        { { "--fp16", "--initial-loss-scale", "2", "--min-loss-scale", "4" },
          "--min-loss-scale 4: must not be above --initial-loss-scale 2" },
        { { "--fp16", "--loss-scale-window", "0" }, "--loss-scale-window 0: must be at least 1" },
        { { "--fp16", "--hysteresis", "0" }, "--hysteresis 0: must be at least 1" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct meg_precision_conf c;
        const struct meg_optgroup groups[] = { { "precision", meg_precision_opts, &c }, { 0 } };
        char *argv[7] = { (char *)"meg-train" };
        struct meg_precision p;
        struct meg_scaler s;
        struct meg_err e;
        int argc = 1;

        for (int k = 0; k < 5 && cases[i].args[k]; k++)
            argv[argc++] = (char *)cases[i].args[k];
        meg_opt_defaults(groups);
        assert_int_equal(meg_opt_parse_args(groups, argc, argv, &e), 0);
        assert_int_equal(meg_precision_make(&p, &s, &c, &e), MEG_EUSAGE);
        assert_string_equal(e.msg, cases[i].message);
    }
}

/* A loss scale of 0 is a dynamic one, which only --fp16 uses. */
static void a_loss_scale_of_zero_is_allowed_in_f32(void **state)
{
    struct meg_precision_conf c = defaults();
    struct meg_precision p;
    struct meg_scaler s;
    struct meg_err e;

    (void)state;
    c.loss_scale = 0;
    assert_int_equal(meg_precision_make(&p, &s, &c, &e), 0);
}

static void state_survives_a_checkpoint(void **state)
{
    struct meg_precision_conf c = defaults();
    struct meg_precision p;
    struct meg_scaler s, restored, constant = { .type = MEG_SCALER_CONSTANT, .scale = 8 };
    json_t *state_json;

    (void)state;
    c.fp16 = true;
    c.loss_scale_window = 5;
    meg_precision_make(&p, &s, &c, NULL);
    restored = s;
    for (int i = 0; i < 7; i++)
        meg_scaler_update(&s, i == 2 || i == 3);
    state_json = meg_scaler_pack(&s);
    assert_int_equal(meg_scaler_unpack(&restored, state_json, "state.json", NULL), 0);
    assert_true(restored.scale == s.scale && restored.growth_tracker == s.growth_tracker &&
                restored.hysteresis_tracker == s.hysteresis_tracker && s.scale != 4294967296.0);
    assert_int_equal(meg_scaler_unpack(&restored, NULL, "state.json", NULL), 0);
    assert_int_equal(meg_scaler_unpack(&constant, state_json, "state.json", NULL), 0);
    assert_true(restored.scale == s.scale && constant.scale == 8);
    json_decref(state_json);
}

static void refuses_invalid_state(void **state)
{
    static const char *const bad[] = {
        "{}",
        "{\"scale\": 0.0, \"growth_tracker\": 1, \"hysteresis_tracker\": 2}",
        "{\"scale\": 2.0, \"growth_tracker\": -1, \"hysteresis_tracker\": 2}",
        "{\"scale\": \"2\", \"growth_tracker\": 1, \"hysteresis_tracker\": 2}",
    };
    struct meg_scaler s = { .type = MEG_SCALER_DYNAMIC, .scale = 16, .min_scale = 1, .window = 3 };

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        json_t *j = json_loads(bad[i], 0, NULL);
        struct meg_err e;

        assert_int_equal(meg_scaler_unpack(&s, j, "iter_1/state.json", &e), MEG_EFORMAT);
        assert_non_null(strstr(e.msg, "iter_1/state.json"));
        assert_true(s.scale == 16 && s.growth_tracker == 0);
        json_decref(j);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_megatron_on_all_reference_rows),
        cmocka_unit_test(constant_scale_never_changes),
        cmocka_unit_test(dtypes_follow_from_the_options),
        cmocka_unit_test(refuses_contradictory_options),
        cmocka_unit_test(a_loss_scale_of_zero_is_allowed_in_f32),
        cmocka_unit_test(state_survives_a_checkpoint),
        cmocka_unit_test(refuses_invalid_state),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
