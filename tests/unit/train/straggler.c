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

static struct meg_work *all_gather(struct meg_comm *c, struct meg_stream *st, void *out, const void *in, int64_t n,
                                   enum meg_dtype t)
{
    (void)c;
    (void)st;
    assert_int_equal(n, MEG_PHASES);
    assert_int_equal(t, MEG_DTYPE_F64);
    memcpy(out, in, sizeof others[0]);
    memcpy((double *)out + n, others, sizeof others);
    return NULL;
}

/* "Receive" the name of the host of rank `root`: it is "r" and the rank. */
static struct meg_work *broadcast(struct meg_comm *c, struct meg_stream *st, void *buf, int64_t n, enum meg_dtype t,
                                  int root)
{
    (void)c;
    (void)st;
    (void)t;
    snprintf(buf, (size_t)n * 4, "r%d", root);
    return NULL;
}

static void report_has_the_slowest_rank_and_the_median(void **state)
{
    const struct meg_comm_ops ops = { .all_gather = all_gather, .broadcast = broadcast };
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
