/* train/progress.c: throughput in progress.txt. */
#include "data_util.h"
#include "base/clock.h"
#include "comm/comm.h"
#include "train/trainer.h"

/* If the line of the first start is damaged, the cumulative throughput covers only the current job. */
static void a_damaged_log_has_the_throughput_of_this_job(void **state)
{
    struct meg_train_job job = { .log.log_progress = true, .ckpt.save = "." };
    const struct meg_train_state saved = { .iteration = 8, .consumed_train = (int64_t)1 << 40 };
    struct meg_comm world = { .size = 1 };
    struct meg_trainer t = { .job = &job, .mesh.world = &world, .sequence_flops = 1e6 };
    double of_job, cumulative;
    char *text;
    size_t n;
    struct meg_err e;

    (void)state;
    t.start_s = meg_now_s() - 9;
    spew_text("progress.txt", "2025-01-01 0"); /* the file system was full */
    assert_int_equal(meg_train_progress_log_start(&t, &e), 0);
    meg_train_progress_log_save(&t, &saved);
    text = slurp("progress.txt", &n);
    assert_int_equal(sscanf(strstr(text, "Job throughput"),
                            "Job throughput: %lf TFLOP/s/GPU\tCumulative throughput: %lf TFLOP/s/GPU", &of_job,
                            &cumulative),
                     2);
    assert_true(of_job > 100);
    assert_true(cumulative > 0.8 * of_job && cumulative < 1.2 * of_job);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(a_damaged_log_has_the_throughput_of_this_job) };

    return cmocka_run_group_tests(tests, enter_scratch, leave_scratch);
}
