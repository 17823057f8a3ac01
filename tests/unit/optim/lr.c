/*
 * Learning rate, weight decay and batch ramp-up equal values printed by Megatron's own modules
 * (tests/data/golden/schedules).
 */
#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <jansson.h>
#include "optim/optim.h"
#include "run/batch_schedule.h"
#include "reference.h"

static json_t *load(const char *dir, const char *name)
{
    char path[4096];
    json_error_t err;
    json_t *j;

    snprintf(path, sizeof path, "%s/%s.json", dir, name);
    if (!(j = json_load_file(path, 0, &err)))
        fail_msg("%s: %s", path, err.text);
    return j;
}

static double num(const json_t *o, const char *key)
{
    return json_number_value(json_object_get(o, key));
}

static int64_t cell(const json_t *row, size_t i)
{
    return json_integer_value(json_array_get(row, i));
}

/* Return the index of a configured word in a NULL-terminated list; 0 if the key is absent. */
static int word(const json_t *config, const char *key, const char *const *list)
{
    const char *s = json_string_value(json_object_get(config, key));

    for (int i = 0; s && list[i]; i++)
        if (strcmp(list[i], s) == 0)
            return i;
    assert_null(s);
    return 0;
}

static void read_schedule(struct meg_lr_schedule *s, const json_t *c)
{
    static const char *const lr[] = { "constant", "linear", "cosine", "inverse-square-root", "WSD", NULL };
    static const char *const wsd[] = { "linear", "cosine", "exponential", NULL };

    memset(s, 0, sizeof *s);
    s->init_lr = num(c, "init_lr");
    s->max_lr = num(c, "max_lr");
    s->min_lr = num(c, "min_lr");
    s->warmup = num(c, "lr_warmup_steps");
    s->decay = (int64_t)num(c, "lr_decay_steps");
    s->wsd_decay = (int64_t)num(c, "wsd_decay_steps");
    s->style = (enum meg_lr_style)word(c, "lr_decay_style", lr);
    s->wsd_style = (enum meg_wsd_style)word(c, "lr_wsd_decay_style", wsd);
    s->start_wd = num(c, "start_wd");
    s->end_wd = num(c, "end_wd");
    s->wd_incr = (int64_t)num(c, "wd_incr_steps");
    s->wd_style = (enum meg_wd_style)word(c, "wd_incr_style", lr);
}

static int check_schedules(const char *dir)
{
    json_t *all = load(dir, "lr_schedules"), *one, *row, *g;
    size_t i, j, k;
    int n = 0;

    json_array_foreach(all, i, one)
    {
        const json_t *groups = json_object_get(one, "param_groups");
        struct meg_lr_schedule s;

        read_schedule(&s, json_object_get(one, "config"));
        json_array_foreach(json_object_get(one, "rows"), j, row)
        {
            int64_t steps = cell(row, 0);
            json_array_foreach(row, k, g)
            {
                const json_t *group = k && groups ? json_array_get(groups, k - 1) : NULL;
                double max = s.max_lr, min = s.min_lr, lr_mult = 1, wd_mult = k == 1;
                if (k == 0)
                    continue;
                if (group) {
                    max = num(group, "max_lr");
                    min = num(group, "min_lr");
                    lr_mult = num(group, "lr_mult");
                    wd_mult = num(group, "wd_mult");
                }
                if (lr_mult * meg_lr_at(&s, max, min, steps) != json_number_value(json_array_get(g, 0)) ||
                    wd_mult * meg_wd_at(&s, steps) != json_number_value(json_array_get(g, 1)))
                    fail_msg("schedule %zu, step %" PRId64 ", group %zu: %.17g %.17g", i, steps, k - 1,
                             lr_mult * meg_lr_at(&s, max, min, steps), wd_mult * meg_wd_at(&s, steps));
                n++;
            }
        }
    }
    json_decref(all);
    return n;
}

static struct meg_batch_schedule read_batch_schedule(const json_t *c)
{
    const json_t *ramp = json_object_get(c, "rampup_batch_size");
    struct meg_batch_schedule p = { 0 };

    p.global = (int64_t)num(c, "global_batch_size");
    p.micro = (int64_t)num(c, "micro_batch_size");
    p.dp_size = (int64_t)num(c, "data_parallel_size");
    p.start = cell(ramp, 0);
    p.increment = cell(ramp, 1);
    p.rampup_samples = cell(ramp, 2);
    p.round_down = json_is_true(json_object_get(c, "decrease_batch_size_if_needed"));
    return p;
}

static int check_rampup(const char *dir)
{
    json_t *all = load(dir, "batch_rampup"), *one, *row;
    size_t i, j;
    int n = 0;

    json_array_foreach(all, i, one)
    {
        struct meg_batch_schedule p = read_batch_schedule(json_object_get(one, "config"));
        int64_t consumed = 0;

        assert_int_equal(meg_batch_schedule_check(&p, NULL), 0);
        json_array_foreach(json_object_get(one, "rows"), j, row)
        {
            struct meg_batch_size b = meg_batch_at(&p, cell(row, 1));
            assert_int_equal(consumed, cell(row, 1));
            assert_int_equal(b.global, cell(row, 2));
            assert_int_equal(b.effective, cell(row, 3));
            assert_int_equal(b.num_micro, cell(row, 4));
            consumed += b.effective;
            n++;
        }
        json_array_foreach(json_object_get(one, "probes"), j, row)
        {
            struct meg_batch_size b = meg_batch_at(&p, cell(row, 0));
            assert_int_equal(b.global, cell(row, 1));
            assert_int_equal(b.num_micro, cell(row, 2));
            n++;
        }
    }
    json_decref(all);
    return n;
}

/* Compare complete runs: options, ramp-up, schedule and skipped steps together. */
static int check_runs(const char *dir)
{
    static const char *const lr[] = { "constant", "linear", "cosine", NULL };
    json_t *all = load(dir, "training_run"), *one, *row, *skip;
    size_t i, j, k;
    int n = 0;

    json_array_foreach(all, i, one)
    {
        const json_t *c = json_object_get(one, "config");
        struct meg_batch_schedule p = read_batch_schedule(c);
        struct meg_optim_conf o = { 0 };
        struct meg_lr_schedule s;
        int64_t consumed = 0, steps = 0;

        o.lr = num(c, "lr");
        o.min_lr = num(c, "min_lr");
        o.lr_decay_style = (enum meg_lr_style)word(c, "lr_decay_style", lr);
        o.lr_wsd_decay_style = MEG_WSD_EXPONENTIAL;
        o.weight_decay_incr_style = MEG_WD_CONSTANT;
        o.lr_decay_iters = o.lr_wsd_decay_iters = o.lr_wsd_decay_samples = MEG_UNSET;
        o.lr_decay_samples = (int64_t)num(c, "lr_decay_samples");
        o.lr_warmup_samples = (int64_t)num(c, "lr_warmup_samples");
        o.lr_warmup_fraction = o.decoupled_lr = o.decoupled_min_lr = NAN;
        o.start_weight_decay = o.end_weight_decay = NAN;
        assert_int_equal(meg_lr_schedule_make(&s, &o, MEG_UNSET, (int64_t)num(c, "train_samples"), p.global, NULL), 0);
        json_array_foreach(json_object_get(one, "rows"), j, row)
        {
            struct meg_batch_size b = meg_batch_at(&p, consumed);
            bool is_skipped = false;

            json_array_foreach(json_object_get(c, "skipped_iterations"), k, skip) is_skipped |=
                json_integer_value(skip) == cell(row, 0);
            assert_true(meg_lr_at(&s, s.max_lr, s.min_lr, steps) == json_number_value(json_array_get(row, 4)));
            consumed += b.effective;
            steps += is_skipped ? 0 : b.effective;
            assert_int_equal(consumed, cell(row, 1));
            assert_int_equal(b.effective, cell(row, 2));
            assert_true(meg_lr_at(&s, s.max_lr, s.min_lr, steps) == json_number_value(json_array_get(row, 5)));
            n++;
        }
    }
    json_decref(all);
    return n;
}

static void equals_megatron_on_all_reference_rows(void **state)
{
    char dir[4096];

    (void)state;
    snprintf(dir, sizeof dir, "%s", golden("schedules"));
    assert_true(check_schedules(dir) > 8000);
    assert_true(check_rampup(dir) > 300);
    assert_true(check_runs(dir) > 100);
}

/* Return the configuration for --lr 1 and options, the lines of a configuration file. */
static struct meg_optim_conf conf_of(const char *options)
{
    struct meg_optim_conf c = { 0 };
    const struct meg_optgroup groups[] = { { "optimizer", meg_optim_opts, &c }, { 0 } };
    struct meg_err e;

    meg_opt_defaults(groups);
    c.lr = 1;
    if (meg_opt_apply(groups, options, "test", &e) < 0)
        fail_msg("%s", e.msg);
    return c;
}

/*
 * Learning rate and weight decay after n samples of a run of ten iterations of ten samples or, if by_samples, of 100
 * samples.
 */
static const struct {
    const char *options;
    bool by_samples;
    int64_t n;
    double lr, weight_decay;
} schedules[] = {
    { "", false, 25, 0.75, 0.01 },
    { "lr = 0.5", false, 50, 0.25, 0.01 },
    { "min-lr = 0.5", false, 50, 0.75, 0.01 },
    { "lr-decay-style = constant", false, 50, 1, 0.01 },
    { "lr-decay-style = cosine", false, 25, 0.85355339059327378, 0.01 },
    { "lr-decay-style = inverse-square-root\nlr-warmup-iters = 2", false, 80, 0.5, 0.01 },
    { "lr-decay-iters = 5", false, 25, 0.5, 0.01 },
    { "lr-decay-samples = 40", true, 30, 0.25, 0.01 },
    { "lr-warmup-iters = 2", false, 10, 0.5, 0.01 },
    { "lr-warmup-samples = 40", true, 10, 0.25, 0.01 },
    { "lr-warmup-fraction = 0.2", false, 10, 0.5, 0.01 },
    { "lr-warmup-fraction = 0.2\nlr-decay-iters = 5", false, 5, 0.5, 0.01 },
    { "lr-warmup-iters = 2\nlr-warmup-init = 0.5", false, 10, 0.75, 0.01 },
    { "lr-decay-style = WSD\nlr-wsd-decay-iters = 4", false, 60, 1, 0.01 },
    { "lr-decay-style = WSD\nlr-wsd-decay-iters = 4", false, 80, 0.41421356237309515, 0.01 },
    { "lr-decay-style = WSD\nlr-wsd-decay-samples = 20", true, 90, 0.41421356237309515, 0.01 },
    { "lr-decay-style = WSD\nlr-wsd-decay-iters = 4\nlr-wsd-decay-style = linear", false, 80, 0.5, 0.01 },
    { "lr-decay-style = WSD\nlr-wsd-decay-iters = 4\nlr-wsd-decay-style = cosine", false, 70, 0.85355339059327378,
      0.01 },
    { "weight-decay = 0.3", false, 0, 1, 0.3 },
    { "weight-decay-incr-style = linear\nstart-weight-decay = 0.2\nend-weight-decay = 1", false, 25, 0.75, 0.4 },
    { "weight-decay-incr-style = linear\nstart-weight-decay = 0.2\nend-weight-decay = 1", true, 101, 0, 1 },
    { "weight-decay-incr-style = cosine\nstart-weight-decay = 0\nend-weight-decay = 1", false, 25, 0.75,
      0.14644660940672627 },
};

static void options_set_the_schedule(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof schedules / sizeof *schedules; i++) {
        const bool by_samples = schedules[i].by_samples;
        const struct meg_optim_conf c = conf_of(schedules[i].options);
        struct meg_lr_schedule s;
        struct meg_err e;
        double lr, wd;

        if (meg_lr_schedule_make(&s, &c, by_samples ? MEG_UNSET : 10, by_samples ? 100 : MEG_UNSET, 10, &e) < 0)
            fail_msg("%s", e.msg);
        lr = meg_lr_at(&s, s.max_lr, s.min_lr, schedules[i].n);
        wd = meg_wd_at(&s, schedules[i].n);
        if (!(fabs(lr - schedules[i].lr) < 1e-12 && fabs(wd - schedules[i].weight_decay) < 1e-12))
            fail_msg("%s: after %" PRId64 " samples: learning rate %.15g, weight decay %.15g; expected %.15g and %.15g",
                     schedules[i].options, schedules[i].n, lr, wd, schedules[i].lr, schedules[i].weight_decay);
    }
}

/* Invalid options, and the beginning of the error message. */
static const char *const refusals[][2] = {
    { "lr = -1", "--lr -1: must be finite and 0 or more" },
    { "min-lr = 2", "--min-lr 2: must not be above --lr" },
    { "lr-warmup-init = 2", "--lr-warmup-init 2: must not be above --lr" },
    { "weight-decay = -0.1", "--weight-decay -0.1: must be finite and 0 or more" },
    { "clip-grad = -1", "--clip-grad -1: must be finite and 0 or more" },
    { "adam-eps = -1", "--adam-eps -1: must be finite and 0 or more" },
    { "adam-beta1 = 1", "--adam-beta1 1: must be at least 0 and less than 1" },
    { "adam-beta2 = 1", "--adam-beta2 1: must be at least 0 and less than 1" },
    { "sgd-momentum = -0.5", "--sgd-momentum -0.5: must be at least 0 and less than 1" },
    { "decoupled-lr = -1", "--decoupled-lr -1: must be 0 or more" },
    { "decoupled-min-lr = 0.1", "--decoupled-min-lr 0.1: requires --decoupled-lr" },
    { "decoupled-lr = 1\ndecoupled-min-lr = -1", "--decoupled-min-lr -1: must be 0 or more" },
    { "decoupled-lr = 1\ndecoupled-min-lr = 2", "--decoupled-lr 1: must be at least --decoupled-min-lr" },
    { "decoupled-lr = 0.1\nmin-lr = 0.2", "--decoupled-lr 0.1: must be at least --min-lr" },
    { "start-weight-decay = 0.1", "--start-weight-decay 0.1: requires --weight-decay-incr-style" },
    { "end-weight-decay = 0.1", "--end-weight-decay 0.1: requires --weight-decay-incr-style" },
    { "weight-decay-incr-style = linear\nstart-weight-decay = 0.1", "--weight-decay-incr-style linear: requires" },
    { "weight-decay-incr-style = linear\nstart-weight-decay = 0.2\nend-weight-decay = 0.1",
      "--weight-decay-incr-style linear: requires" },
    { "lr-decay-iters = 0", "--lr-decay-iters 0: must be at least 1" },
    { "lr-decay-samples = 50", "--lr-decay-samples 50: requires --train-samples" },
    { "lr-warmup-fraction = 1.5", "--lr-warmup-fraction 1.5: must be at least 0 and less than 1" },
    { "lr-warmup-fraction = 0.5\nlr-warmup-iters = 2",
      "--lr-warmup-fraction 0.5: cannot be combined with --lr-warmup-iters" },
    { "lr-warmup-iters = 10", "learning rate: the warm-up has 100 samples, but must be shorter than the decay" },
    { "lr-decay-style = WSD", "--lr-decay-style WSD: requires --lr-wsd-decay-iters" },
    { "lr-decay-style = WSD\nlr-wsd-decay-iters = 11", "--lr-decay-style WSD: the final decay of 110 samples" },
};

static void refuses_invalid_schedules(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        const struct meg_optim_conf c = conf_of(refusals[i][0]);
        struct meg_lr_schedule s;
        struct meg_err e = { 0 };

        if (meg_lr_schedule_make(&s, &c, 10, MEG_UNSET, 10, &e) != MEG_EUSAGE ||
            strncmp(e.msg, refusals[i][1], strlen(refusals[i][1])) != 0)
            fail_msg("%s: message is '%s', expected '%s'", refusals[i][0], e.msg, refusals[i][1]);
    }
}

static void counts_iterations_of_a_run_in_samples(void **state)
{
    struct meg_batch_schedule p = { 64, 2, 4, 16, 8, 1000, false };

    (void)state;
    assert_int_equal(meg_batch_iterations(&p, 1016), 34); /* the ramp-up ends at 1016 samples */
    assert_int_equal(meg_batch_iterations(&p, 1016 + 63), 34);
    assert_int_equal(meg_batch_iterations(&p, 1016 + 64), 35);
    assert_int_equal(meg_batch_iterations(&p, 15), 0);
    p.rampup_samples = 0;
    assert_int_equal(meg_batch_iterations(&p, 1000), 15);
}

static void refuses_batches_that_ranks_do_not_divide(void **state)
{
    struct meg_batch_schedule p = { 50, 4, 3, 0, 0, 0, false };
    struct meg_err e;

    (void)state;
    assert_int_equal(meg_batch_schedule_check(&p, &e), MEG_EUSAGE);
    assert_string_equal(
        e.msg, "--global-batch-size 50: must be a multiple of 12, which is --micro-batch-size 4 times the "
               "data-parallel size 3; use 48, the nearest multiple, or --decrease-batch-size-if-needed to round "
               "down");
    p.global = 54; /* equally far from 48 and 60 */
    assert_int_equal(meg_batch_schedule_check(&p, &e), MEG_EUSAGE);
    assert_non_null(strstr(e.msg, "; use 60, the nearest multiple"));
    p.global = 5;
    assert_int_equal(meg_batch_schedule_check(&p, &e), MEG_EUSAGE);
    assert_non_null(strstr(e.msg, "the data-parallel size 3; use 12, the nearest multiple"));
    p = (struct meg_batch_schedule){ 64, 2, 4, 12, 4, 1000, false };
    assert_int_equal(meg_batch_schedule_check(&p, &e), MEG_EUSAGE);
    assert_non_null(strstr(e.msg, "--rampup-batch-size, at a global batch size of 12: must be a multiple of 8"));
    p = (struct meg_batch_schedule){ 64, 2, 4, 16, 7, 1000, false };
    assert_int_equal(meg_batch_schedule_check(&p, &e), MEG_EUSAGE);
    assert_non_null(strstr(e.msg, "16 7 1000"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_megatron_on_all_reference_rows),
        cmocka_unit_test(options_set_the_schedule),
        cmocka_unit_test(refuses_invalid_schedules),
        cmocka_unit_test(counts_iterations_of_a_run_in_samples),
        cmocka_unit_test(refuses_batches_that_ranks_do_not_divide),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
