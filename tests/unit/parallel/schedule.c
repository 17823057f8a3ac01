/*
 * Pipeline schedules of 1-8 stages, 1-4 chunks and 1-32 micro-batches: the simulator accepts them, memory and bubble
 * equal the published formulas, and the orders are those of the papers' figures.  The simulator rejects damaged
 * lists of actions.
 */
#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/mem.h"
#include "parallel/schedule.h"

static const enum meg_pipe_schedule_type types[] = { MEG_PIPE_1F1B, MEG_PIPE_INTERLEAVED, MEG_PIPE_ZB_H1 };
static const struct meg_pipe_schedule_times unit = { 1, 1, 1, 0, NULL };

static struct meg_pipe_schedule *make_all(const struct meg_pipe_schedule_conf *c)
{
    struct meg_pipe_schedule *all = meg_new((size_t)c->stages * sizeof *all);

    for (int i = 0; i < c->stages; i++)
        meg_pipe_schedule_make(&all[i], c, i);
    return all;
}

static void free_all(struct meg_pipe_schedule *all)
{
    const int stages = all[0].conf.stages;

    for (int i = 0; i < stages; i++)
        meg_pipe_schedule_free(&all[i]);
    free(all);
}

static void fail_at(const struct meg_pipe_schedule_conf *c, const char *what)
{
    fail_msg("%s, %d stages, %d chunks, %" PRId64 " micro-batches, group %" PRId64 ", %s: %s",
             meg_pipe_schedule_name(c), c->stages, c->chunks, c->microbatches, c->microbatch_group,
             c->is_forward_only ? "forward only" : "both ways", what);
}

/* Call f for every valid configuration; return the number of configurations. */
static int for_all(void (*f)(const struct meg_pipe_schedule_conf *c))
{
    int n = 0;

    for (size_t k = 0; k < sizeof types / sizeof *types; k++)
        for (int p = 1; p <= 8; p++)
            for (int v = 1; v <= 4; v++)
                for (int m = 1; m <= 32; m++)
                    for (int group = 0; group <= 32; group++)
                        for (int forward = 0; forward <= 1; forward++) {
                            const struct meg_pipe_schedule_conf c = { types[k], p, v, m, group, forward };

                            if (meg_pipe_schedule_check(&c, NULL) == 0) {
                                f(&c);
                                n++;
                            }
                        }
    return n;
}

/* Return the published bubble for steps of equal duration; negative: none is published for this configuration. */
static double published_bubble(const struct meg_pipe_schedule_conf *c)
{
    const double p = c->stages, m = (double)c->microbatches, v = c->chunks;

    if (c->type == MEG_PIPE_ZB_H1)
        return m < p ? -1 : (p - 1) / (3 * m);
    return c->type == MEG_PIPE_INTERLEAVED && c->microbatches % c->stages ? -1 : (p - 1) / (v * m);
}

static void check_schedule(const struct meg_pipe_schedule_conf *c)
{
    struct meg_pipe_schedule *all = make_all(c);
    double idle[8], want = c->is_forward_only ? -1 : published_bubble(c);
    struct meg_pipe_schedule_cost cost = { .idle = idle };
    struct meg_err e;

    if (meg_pipe_schedule_simulate(all, &unit, &cost, &e) < 0)
        fail_at(c, e.msg);
    for (int i = 0; i < c->stages; i++) {
        if (all[i].slots != meg_pipe_schedule_in_flight(c, i))
            fail_at(c, "slots differ from the formula");
        if (!c->is_forward_only && !(fabs(idle[i] - cost.bubble * cost.busy) <= 1e-9))
            fail_at(c, "stages with equal work have different idle times");
    }
    if (want >= 0 && !(fabs(cost.bubble - want) <= 1e-12))
        fail_at(c, "the bubble differs from the published one");
    free_all(all);
}

static void every_schedule_is_valid_and_has_the_published_bubble(void **state)
{
    (void)state;
    assert_int_equal(for_all(check_schedule), 11410);
}

/* Expected values are those of the published formulas for some configurations. */
static void micro_batches_in_flight_are_as_published(void **state)
{
    const struct meg_pipe_schedule_conf plain = { MEG_PIPE_1F1B, 4, 1, 8, 0, false },
                                        zb = { MEG_PIPE_ZB_H1, 4, 1, 8, 0, false },
                                        inter = { MEG_PIPE_AUTO, 4, 2, 8, 0, false },
                                        few = { MEG_PIPE_AUTO, 4, 1, 2, 0, false };
    static const int64_t want[][4] = { { 4, 3, 2, 1 }, { 4, 4, 4, 4 }, { 11, 9, 7, 5 }, { 2, 2, 2, 1 } };

    (void)state;
    for (int i = 0; i < 4; i++) {
        assert_int_equal(meg_pipe_schedule_in_flight(&plain, i), want[0][i]);
        assert_int_equal(meg_pipe_schedule_in_flight(&zb, i), want[1][i]);
        assert_int_equal(meg_pipe_schedule_in_flight(&inter, i), want[2][i]);
        assert_int_equal(meg_pipe_schedule_in_flight(&few, i), want[3][i]);
    }
}

static void zb_h1_has_a_smaller_bubble_at_equal_memory(void **state)
{
    (void)state;
    for (int p = 2; p <= 8; p++)
        for (int m = 1; m <= 32; m++) {
            const struct meg_pipe_schedule_conf plain = { MEG_PIPE_1F1B, p, 1, m, 0, false },
                                                zb = { MEG_PIPE_ZB_H1, p, 1, m, 0, false };
            struct meg_pipe_schedule_cost a = { 0 }, b = { 0 };

            meg_pipe_schedule_estimate(&plain, &unit, &a);
            meg_pipe_schedule_estimate(&zb, &unit, &b);
            if (!(b.bubble < a.bubble))
                fail_at(&zb, "the bubble is not smaller than that of 1f1b");
            assert_true(a.busy == b.busy);
            for (int i = 0; i < p; i++)
                assert_true(meg_pipe_schedule_in_flight(&zb, i) <= meg_pipe_schedule_in_flight(&plain, 0));
        }
}

/* ---- orders and costs -------------------------------------------------------------------- */

/*
 * Assert the order of steps, written as "F0a b0a W0a": type (F: forward, B: complete backward, b: BWD_INPUT,
 * W: BWD_WEIGHT), micro-batch, chunk.
 */
static void assert_order(const struct meg_pipe_schedule_conf *c, int stage, const char *want)
{
    struct meg_pipe_schedule s;
    struct meg_str got = { 0 };

    meg_pipe_schedule_make(&s, c, stage);
    for (int64_t i = 0; i < s.n; i++)
        if (s.action[i].type < MEG_ACTION_START)
            meg_str_printf(&got, "%s%c%" PRId64 "%c", got.n ? " " : "", "FBbW"[s.action[i].type],
                           s.action[i].microbatch, 'a' + s.action[i].chunk);
    assert_string_equal(got.s, want);
    meg_str_free(&got);
    meg_pipe_schedule_free(&s);
}

static void steps_are_in_the_published_order(void **state)
{
    const struct meg_pipe_schedule_conf plain = { MEG_PIPE_1F1B, 4, 1, 6, 0, false },
                                        one = { MEG_PIPE_AUTO, 1, 1, 2, 0, false },
                                        inter = { MEG_PIPE_AUTO, 2, 2, 4, 0, false },
                                        uneven = { MEG_PIPE_AUTO, 2, 2, 5, 3, true },
                                        zb = { MEG_PIPE_ZB_H1, 4, 1, 6, 0, false };

    (void)state;
    assert_order(&one, 0, "F0a B0a F1a B1a");
    assert_order(&plain, 0, "F0a F1a F2a F3a B0a F4a B1a F5a B2a B3a B4a B5a");
    assert_order(&plain, 3, "F0a B0a F1a B1a F2a B2a F3a B3a F4a B4a F5a B5a");
    assert_order(&inter, 0, "F0a F1a F0b F1b F2a B0b F3a B1b F2b B0a F3b B1a B2b B3b B2a B3a");
    assert_order(&inter, 1, "F0a F1a F0b B0b F1b B1b F2a B0a F3a B1a F2b B2b F3b B3b B2a B3a");
    assert_order(&uneven, 1, "F0a F1a F2a F0b F1b F2b F3a F4a F3b F4b");
    assert_order(&zb, 0, "F0a F1a F2a F3a B0a F4a B1a F5a B2a B3a B4a B5a");
    assert_order(&zb, 2, "F0a F1a b0a F2a b1a F3a b2a W0a F4a b3a W1a F5a b4a W2a b5a W3a W4a W5a");
}

static void transfers_overlap_with_steps(void **state)
{
    const struct meg_pipe_schedule_times t = { .fwd = 1, .bwd_input = 1, .bwd_weight = 1, .transfer = 1 };

    (void)state;
    for (int p = 1; p <= 8; p++) {
        const struct meg_pipe_schedule_conf c = { MEG_PIPE_1F1B, p, 1, 32, 0, true };
        struct meg_pipe_schedule_cost cost = { 0 };

        meg_pipe_schedule_estimate(&c, &t, &cost);
        assert_true(cost.makespan == 32 + 2 * (p - 1)); /* each link delays only its first transfer */
    }
}

static void parts_may_have_different_durations(void **state)
{
    const double weight[] = { 1, 2, 3, 1 };
    const struct meg_pipe_schedule_times t = { 1, 1, 1, 0, weight };
    const struct meg_pipe_schedule_conf c = { MEG_PIPE_AUTO, 2, 2, 2, 0, false };
    double idle[2];
    struct meg_pipe_schedule_cost cost = { .idle = idle };

    (void)state;
    meg_pipe_schedule_estimate(&c, &t, &cost);
    assert_true(cost.busy == 2 * 3 * (1 + 3)); /* stage 0 has chunks 0 and 2 of the model */
    assert_true(cost.makespan - idle[0] == cost.busy);
    assert_true(cost.makespan - idle[1] == 2 * 3 * (2 + 1));
    assert_true(cost.bubble == (cost.makespan - cost.busy) / cost.busy && cost.bubble > 0);
}

/* ---- invalid configurations and lists --------------------------------------------------------------------- */

static void invalid_configurations_are_reported(void **state)
{
    static const struct {
        struct meg_pipe_schedule_conf c;
        const char *msg;
    } bad[] = {
        { { MEG_PIPE_AUTO, 0, 1, 4, 0, false }, "--pipeline-model-parallel-size 0: must be at least 1" },
        { { MEG_PIPE_AUTO, 2, 0, 4, 0, false }, "--num-virtual-stages-per-pipeline-rank 0: must be at least 1" },
        { { MEG_PIPE_AUTO, 2, 1, 0, 0, false }, "a step has 0 micro-batches, expected at least 1" },
        { { MEG_PIPE_INTERLEAVED, 2, 1, 4, 0, false },
          "--pipeline-schedule interleaved: requires --num-virtual-stages-per-pipeline-rank of at least 2, not 1" },
        { { MEG_PIPE_ZB_H1, 2, 2, 4, 0, false },
          "--pipeline-schedule zb-h1: requires --num-virtual-stages-per-pipeline-rank 1, not 2" },
        { { MEG_PIPE_AUTO, 1, 2, 4, 0, false },
          "--num-virtual-stages-per-pipeline-rank 2: requires --pipeline-model-parallel-size of at least 2, not 1" },
        { { MEG_PIPE_AUTO, 2, 1, 4, 2, false },
          "--microbatch-group-size-per-virtual-pipeline-stage 2: requires --num-virtual-stages-per-pipeline-rank of at "
          "least 2, not 1" },
        { { MEG_PIPE_AUTO, 4, 2, 3, 0, false },
          "a step has 3 micro-batches; with --num-virtual-stages-per-pipeline-rank 2, it must have at least one per "
          "pipeline stage (--pipeline-model-parallel-size 4); use a larger batch size" },
        { { MEG_PIPE_AUTO, 4, 2, 8, 3, false },
          "--microbatch-group-size-per-virtual-pipeline-stage 3: must be from 4, the value of "
          "--pipeline-model-parallel-size, to 8, the number of micro-batches per step" },
        { { MEG_PIPE_AUTO, 4, 2, 8, 9, false },
          "--microbatch-group-size-per-virtual-pipeline-stage 9: must be from 4, the value of "
          "--pipeline-model-parallel-size, to 8, the number of micro-batches per step" },
        { { MEG_PIPE_AUTO, 4, 2, 8, -1, false },
          "--microbatch-group-size-per-virtual-pipeline-stage -1: must be from 4, the value of "
          "--pipeline-model-parallel-size, to 8, the number of micro-batches per step" },
        { { MEG_PIPE_AUTO, 4, 2, 6, 0, false },
          "--microbatch-group-size-per-virtual-pipeline-stage 4: dividing the 6 micro-batches of a step by this group "
          "size leaves a remainder of 2, which must be 0 or at least 4, the value of --pipeline-model-parallel-size; "
          "change the group size or the batch size" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct meg_err e;

        assert_int_equal(meg_pipe_schedule_check(&bad[i].c, &e), MEG_EUSAGE);
        assert_string_equal(e.msg, bad[i].msg);
    }
}

/*
 * Configurations whose lists of actions are damaged.  Together they contain every type of action, and two stages each
 * of which is both the previous and the next stage of the other.
 */
static const struct meg_pipe_schedule_conf damaged[] = {
    { MEG_PIPE_1F1B, 3, 1, 5, 0, false },        { MEG_PIPE_INTERLEAVED, 2, 3, 8, 5, false },
    { MEG_PIPE_INTERLEAVED, 3, 2, 6, 0, false }, { MEG_PIPE_ZB_H1, 4, 1, 6, 0, false },
    { MEG_PIPE_INTERLEAVED, 2, 2, 4, 0, true },
};

/* Simulate with the list of one stage replaced by n actions. */
static int simulate_with(struct meg_pipe_schedule *all, int stage, struct meg_action *action, int64_t n,
                         struct meg_err *e)
{
    const struct meg_pipe_schedule original = all[stage];
    struct meg_pipe_schedule_cost cost = { 0 };
    int r;

    all[stage].action = action;
    all[stage].n = n;
    r = meg_pipe_schedule_simulate(all, &unit, &cost, e);
    all[stage] = original;
    return r;
}

/* Remove or repeat each action. */
static void a_list_that_lacks_or_repeats_an_action_is_rejected(void **state)
{
    (void)state;
    for (size_t k = 0; k < sizeof damaged / sizeof *damaged; k++) {
        struct meg_pipe_schedule *all = make_all(&damaged[k]);

        for (int stage = 0; stage < damaged[k].stages; stage++)
            for (int64_t i = 0; i < all[stage].n; i++) {
                const int64_t n = all[stage].n;
                struct meg_action *copy = meg_realloc_array(NULL, (size_t)n + 1, sizeof *copy);
                struct meg_err e;

                memcpy(copy, all[stage].action, (size_t)i * sizeof *copy);
                memcpy(copy + i, all[stage].action + i + 1, (size_t)(n - i - 1) * sizeof *copy);
                assert_int_equal(simulate_with(all, stage, copy, n - 1, &e), MEG_EFAIL);
                memcpy(copy + i + 1, all[stage].action + i, (size_t)(n - i) * sizeof *copy);
                copy[i] = all[stage].action[i];
                assert_int_equal(simulate_with(all, stage, copy, n + 1, &e), MEG_EFAIL);
                free(copy);
            }
        free_all(all);
    }
}

/* Change slot, buffer, chunk or micro-batch of each action. */
static void a_list_with_a_wrong_number_is_rejected(void **state)
{
    (void)state;
    for (size_t k = 0; k < sizeof damaged / sizeof *damaged; k++) {
        struct meg_pipe_schedule *all = make_all(&damaged[k]);

        for (int stage = 0; stage < damaged[k].stages; stage++)
            for (int64_t i = 0; i < all[stage].n; i++) {
                struct meg_action *a = &all[stage].action[i];
                const struct meg_action good = *a;
                struct meg_pipe_schedule_cost cost = { 0 };

                for (int what = -3; what < MEG_EDGES; what++) {
                    a->chunk += what == -3;
                    a->microbatch += what == -2;
                    a->slot += what == -1 && a->type < MEG_ACTION_START ? 1000 : 0;
                    if (what >= 0)
                        a->buf[what] = a->buf[what] >= 0 ? 1000 : a->type < MEG_ACTION_START ? 0 : -1;
                    if (memcmp(a, &good, sizeof good))
                        assert_int_equal(meg_pipe_schedule_simulate(all, &unit, &cost, NULL), MEG_EFAIL);
                    *a = good;
                }
            }
        free_all(all);
    }
}

/* Return the first action of this type, edge and micro-batch. */
static struct meg_action *find(const struct meg_pipe_schedule *s, enum meg_action_type type, enum meg_edge edge,
                               int64_t mb)
{
    for (int64_t i = 0; i < s->n; i++)
        if (s->action[i].type == type && s->action[i].edge == edge && s->action[i].microbatch == mb)
            return &s->action[i];
    fail_msg("no such action");
    return NULL;
}

static void assert_error(struct meg_pipe_schedule *all, const char *want)
{
    struct meg_pipe_schedule_cost cost = { 0 };
    struct meg_err e;

    assert_int_equal(meg_pipe_schedule_simulate(all, &unit, &cost, &e), MEG_EFAIL);
    assert_string_equal(e.msg, want);
    free_all(all);
}

static void swap(struct meg_action *a, struct meg_action *b)
{
    const struct meg_action t = *a;

    *a = *b;
    *b = t;
}

static void errors_name_stage_and_action(void **state)
{
    const struct meg_pipe_schedule_conf two = { MEG_PIPE_1F1B, 2, 1, 3, 0, false };
    struct meg_pipe_schedule *all;

    (void)state;
    all = make_all(&two); /* stage 0 waits for a gradient before it sends the activations */
    swap(find(&all[0], MEG_ACTION_WAIT, MEG_EDGE_DY, 0), find(&all[0], MEG_ACTION_START, MEG_EDGE_Y, 0));
    assert_error(all,
                 "stage 0, action 2, WAIT DY of chunk 0, micro-batch 0: deadlock: the peer never starts the transfer");
    all = make_all(&two); /* two receives are swapped */
    swap(find(&all[1], MEG_ACTION_START, MEG_EDGE_X, 0), find(&all[1], MEG_ACTION_START, MEG_EDGE_X, 1));
    assert_error(all, "stage 1, action 2, WAIT X of chunk 0, micro-batch 0: the matching message of the peer is "
                      "for a different tensor");
    all = make_all(&two);
    all[1].slots++;
    assert_error(all, "stage 1: the schedule has 2 buffers (activation slots), but uses at most 1 at once");
    all = make_all(&two);
    all[0].bufs[MEG_EDGE_DY]++;
    assert_error(all, "stage 0: the schedule has 3 buffers (DY), but uses at most 2 at once");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_schedule_is_valid_and_has_the_published_bubble),
        cmocka_unit_test(micro_batches_in_flight_are_as_published),
        cmocka_unit_test(zb_h1_has_a_smaller_bubble_at_equal_memory),
        cmocka_unit_test(steps_are_in_the_published_order),
        cmocka_unit_test(transfers_overlap_with_steps),
        cmocka_unit_test(parts_may_have_different_durations),
        cmocka_unit_test(invalid_configurations_are_reported),
        cmocka_unit_test(a_list_that_lacks_or_repeats_an_action_is_rejected),
        cmocka_unit_test(a_list_with_a_wrong_number_is_rejected),
        cmocka_unit_test(errors_name_stage_and_action),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
