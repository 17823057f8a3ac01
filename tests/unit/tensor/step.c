/* meg_step_finish: mean loss, gradient norm, clipping, the decision to skip, and the candidate hyper-parameters. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "tensor/step.h"

/* Return a record whose gradients have norm 5 before they are divided by the loss scale, 4. */
static struct meg_step_record record(enum meg_scaler_type type)
{
    const struct meg_step_record r = {
        .sums = { .loss = { 30 }, .loss_divisor = 10, .grad_sumsq = 25 },
        .scaler = { .type = type, .scale = 4, .min_scale = 1, .window = 2, .hysteresis = 1, .hysteresis_tracker = 1 },
        .num_updates = 7,
    };

    return r;
}

static const struct meg_step_conf conf = {
    .candidate = { { .lr = { 1, 2 }, .adam_c1 = 3 }, { .lr = { 4, 5 }, .adam_c1 = 6 } },
    .num_updates = 7,
    .has_grad_norm = true,
};

static void unscales_and_averages(void **state)
{
    struct meg_step_record r = record(MEG_SCALER_CONSTANT);
    struct meg_step_conf c = conf;

    (void)state;
    meg_step_finish(&r, &c);
    assert_true(r.loss[0] == 3 && r.grad_norm == 1.25 && r.hparams.grad_scale == 0.25f);
    assert_true(!r.is_skipped && !r.hparams.skip && r.num_updates == 8);
    r = record(MEG_SCALER_NONE);
    r.scaler.scale = 1;
    c.is_per_token = true;
    meg_step_finish(&r, &c);
    assert_true(r.grad_norm == 0.1 * 5 && r.hparams.grad_scale == 0.1f);
    r.sums.loss_divisor = 0; /* a batch without unmasked tokens */
    meg_step_finish(&r, &c);
    assert_true(r.loss[0] == 0 && r.hparams.grad_scale == 1);
}

static void clips_to_the_limit(void **state)
{
    struct meg_step_record r = record(MEG_SCALER_CONSTANT);
    struct meg_step_conf c = conf;

    (void)state;
    c.clip_grad = 0.5f;
    meg_step_finish(&r, &c);
    assert_true(r.hparams.grad_scale == (float)(0.25 * (0.5 / (1.25 + 1e-6))));
    c.clip_grad = 2;
    meg_step_finish(&r, &c);
    assert_true(r.hparams.grad_scale == 0.25f);
    c.clip_grad = 0.5f;
    c.has_grad_norm = false;
    meg_step_finish(&r, &c);
    assert_true(isnan(r.grad_norm) && r.hparams.grad_scale == 0.25f);
}

static void candidates_follow_the_updates(void **state)
{
    struct meg_step_record r = record(MEG_SCALER_CONSTANT);

    (void)state;
    meg_step_finish(&r, &conf);
    assert_true(r.hparams.lr[0] == 1 && r.hparams.lr[1] == 2 && r.hparams.adam_c1 == 3);
    meg_step_finish(&r, &conf); /* conf.num_updates is still 7, as if the host had not read the first result yet */
    assert_true(r.hparams.lr[0] == 4 && r.hparams.lr[1] == 5 && r.hparams.adam_c1 == 6);
    r = record(MEG_SCALER_CONSTANT);
    r.sums.grad_sumsq = INFINITY;
    meg_step_finish(&r, &conf);
    assert_true(r.is_skipped && r.num_updates == 7);
    r.sums.grad_sumsq = 25;
    meg_step_finish(&r, &conf);
    assert_true(!r.is_skipped && r.hparams.lr[0] == 1 && r.num_updates == 8);
}

static void skips_what_is_not_finite(void **state)
{
    static const double bad[] = { NAN, INFINITY };
    struct meg_step_conf c = conf;

    (void)state;
    for (int i = 0; i < 4; i++)
        for (int type = MEG_SCALER_NONE; type <= MEG_SCALER_DYNAMIC; type++)
            for (int skips = 0; skips < 2; skips++) {
                struct meg_step_record r = record((enum meg_scaler_type)type);
                const bool is_loss = i % 2;

                *(is_loss ? &r.sums.loss[type % MEG_MAX_LOSSES] : &r.sums.grad_sumsq) = bad[i / 2];
                c.skips_nonfinite = skips;
                meg_step_finish(&r, &c);
                assert_int_equal(r.is_skipped, skips || (type != MEG_SCALER_NONE && !is_loss));
                assert_int_equal(r.hparams.skip, r.is_skipped);
                assert_int_equal(r.num_updates, r.is_skipped ? 7 : 8);
            }
}

static void overflows_halve_a_dynamic_scale(void **state)
{
    struct meg_step_record r = record(MEG_SCALER_DYNAMIC);

    (void)state;
    r.sums.grad_sumsq = INFINITY;
    meg_step_finish(&r, &conf);
    assert_true(r.is_skipped && r.scaler.scale == 2);
    r.sums.grad_sumsq = 25;
    meg_step_finish(&r, &conf);
    assert_true(!r.is_skipped && r.hparams.grad_scale == 0.5f && r.scaler.scale == 2);
    meg_step_finish(&r, &conf);
    assert_true(r.hparams.grad_scale == 0.5f && r.scaler.scale == 4); /* the new scale is for the next step */
}

static void names_the_last_nonfinite_parameter(void **state)
{
    const double sums[] = { 1, NAN, INFINITY, 4 };
    struct meg_step_record r = record(MEG_SCALER_NONE);
    struct meg_step_conf c = conf;

    (void)state;
    c.grad_sum = sums;
    for (int n = 0; n <= 4; n++) {
        static const int64_t want[] = { 0, 0, 2, 3, 3 };

        c.num_params = n;
        meg_step_finish(&r, &c);
        assert_int_equal(r.nonfinite_param, want[n]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unscales_and_averages),           cmocka_unit_test(clips_to_the_limit),
        cmocka_unit_test(candidates_follow_the_updates),   cmocka_unit_test(skips_what_is_not_finite),
        cmocka_unit_test(overflows_halve_a_dynamic_scale), cmocka_unit_test(names_the_last_nonfinite_parameter),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
