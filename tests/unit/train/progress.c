/* train/progress.c: the numbers in progress.txt. */
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

/* Append a line that a job on `ranks` ranks wrote `age_s` seconds ago. */
static void add_line(FILE *f, time_t age_s, int ranks, const char *text)
{
    const time_t then = time(NULL) - age_s;
    char date[32];

    strftime(date, sizeof date, "%Y-%m-%d %H:%M:%S", localtime(&then));
    fprintf(f, "%s\tJob ID: \t# GPUs: %d\t%s\n", date, ranks, text);
}

/* This job started 1000 s ago on 2 ranks, and the first job on 2 ranks, after a job on 4 ranks, 4000 s ago. */
static void a_line_has_the_numbers_of_the_run(void **state)
{
    struct meg_train_job job = { .log.log_progress = true, .ckpt.save = ".", .train.seq_length = 4096 };
    const struct meg_train_state saved = { .iteration = 8, .consumed_train = 150080 };
    struct meg_comm world = { .size = 2 };
    struct meg_trainer t = { .job = &job, .mesh.world = &world, .sequence_flops = 1e12, .state.consumed_train = 50000 };
    FILE *f = fopen("progress.txt", "w");
    char *text;
    size_t n;
    struct meg_err e;

    (void)state;
    setenv("SLURM_JOB_ID", "1234", 1);
    add_line(f, 9000, 2, "Starting job");
    add_line(f, 8000, 4, "Starting job");
    add_line(f, 7000, 4, "Saved checkpoint\tFloating-point operations: 1.00e+16\tTokens (in billions): 0.04");
    add_line(f, 4000, 2, "Starting job");
    add_line(f, 3000, 2, "Saved checkpoint\tFloating-point operations: 5.00e+16\tTokens (in billions): 0.20");
    fclose(f);
    assert_int_equal(meg_train_progress_log_start(&t, &e), 0);
    t.start_s = meg_now_s() - 1000;
    meg_train_progress_log_save(&t, &saved);
    text = slurp("progress.txt", &n);
    /*
     * 150080 sequences are 1.5008e17 FLOP and 6.15e8 tokens.  This job computed 1.0008e17 of them in 1000 s, and the
     * jobs on 2 ranks 1.4008e17 in 4001 s.
     */
    assert_string_equal(strstr(text, "0.20\n") + 5 + strlen("2025-01-01 00:00:00"),
                        strstr(text, "\tJob ID: 1234\t# GPUs: 2\tStarting job\n"));
    assert_string_equal(strstr(text, "\tJob ID: 1234\t# GPUs: 2\tSaved"),
                        "\tJob ID: 1234\t# GPUs: 2\tSaved checkpoint\tIteration: 8\tJob throughput: 50.0 TFLOP/s/GPU\t"
                        "Cumulative throughput: 17.5 TFLOP/s/GPU\tFloating-point operations: 1.50e+17\t"
                        "Tokens (in billions): 0.61\n");
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(a_damaged_log_has_the_throughput_of_this_job),
                                        cmocka_unit_test(a_line_has_the_numbers_of_the_run) };

    return cmocka_run_group_tests(tests, enter_scratch, leave_scratch);
}
