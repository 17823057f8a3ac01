/* train/straggler.h: the report, computed by hand for five ranks; time of waits is not counted. */
#include "data_util.h"
#include <unistd.h>
#include "comm/internal.h"
#include "train/straggler.h"

enum { RANKS = 5 };

/* Milliseconds per step of each phase on ranks 1 to 4. */
static const double others[RANKS - 1][MEG_PHASES] = {
    { 20.5, 7, 3, 0.4 }, { 40, 5, 2, 0.3 }, { 10, 6, 1, 0.9 }, { 30, 2, 5, 0.7 }
};

/* Gather the times of the other ranks, or "receive" the name of the host of rank `root`: it is "r" and the rank. */
static struct meg_work *start(struct meg_comm *c, struct meg_stream *st, const struct meg_comm_call *x)
{
    (void)c;
    (void)st;
    if (x->op == MEG_BROADCAST) {
        snprintf(x->out, (size_t)x->n * 4, "r%d", x->peer);
        return NULL;
    }
    assert_int_equal(x->op, MEG_ALL_GATHER);
    assert_int_equal(x->n, MEG_PHASES);
    assert_int_equal(x->dtype, MEG_DTYPE_F64);
    memcpy(x->out, x->in, sizeof others[0]);
    memcpy((double *)x->out + x->n, others, sizeof others);
    return NULL;
}

static void report_has_the_slowest_rank_and_the_median(void **state)
{
    const struct meg_comm_ops ops = { .start = start };
    struct meg_comm world = { .host = &ops, .size = RANKS };
    /* 2 steps: 11, 4, 4 and 0.2 ms per step on rank 0 */
    struct meg_straggler s = { .busy_s = { 0.022, 0.008, 0.008, 0.0004 }, .steps = 2 };
    const int saved = dup(STDOUT_FILENO);
    char *text;
    size_t n;

    (void)state;
    fflush(stdout);
    assert_non_null(freopen("report", "w", stdout));
    meg_straggler_report(&s, &world, 12);
    dup2(saved, STDOUT_FILENO);
    close(saved);
    text = slurp("report", &n);
    assert_int_equal(n, strlen(text));
    assert_string_equal(text, " slowest ranks to iteration       12 (ms a step, median) | batch: 2 on r2 40.0, 20.5 |"
                              " forward-backward: 1 on r1 7.0, 5.0 | gradient reduction: 4 on r4 5.0, 3.0 |"
                              " optimizer: 3 on r3 0.9, 0.4 |\n");
    free(text);
    assert_int_equal(s.steps, 0);
    assert_true(s.busy_s[MEG_PHASE_BATCH] == 0);
}

static void waits_are_not_counted(void **state)
{
    struct meg_straggler s = { 0 };

    (void)state;
    for (int step = 0; step < 2; step++) {
        meg_straggler_enter(&s, MEG_PHASE_BATCH);
        meg_comm_add_wait(1000);
        meg_straggler_enter(&s, MEG_PHASE_FORWARD_BACKWARD);
        meg_straggler_enter(&s, MEG_PHASE_GRAD_REDUCE);
        meg_comm_add_wait(2000);
        meg_straggler_end_step(&s);
        meg_comm_add_wait(4000); /* between steps, no phase is active */
    }
    /* The test takes less than 100 s. */
    assert_true(s.busy_s[MEG_PHASE_BATCH] >= -2000 && s.busy_s[MEG_PHASE_BATCH] < -1900);
    assert_true(s.busy_s[MEG_PHASE_FORWARD_BACKWARD] >= 0 && s.busy_s[MEG_PHASE_FORWARD_BACKWARD] < 100);
    assert_true(s.busy_s[MEG_PHASE_GRAD_REDUCE] >= -4000 && s.busy_s[MEG_PHASE_GRAD_REDUCE] < -3900);
    assert_true(s.busy_s[MEG_PHASE_OPTIMIZER] == 0);
    assert_int_equal(s.steps, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(report_has_the_slowest_rank_and_the_median),
                                        cmocka_unit_test(waits_are_not_counted) };

    return cmocka_run_group_tests(tests, enter_scratch, leave_scratch);
}
