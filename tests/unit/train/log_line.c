/* The log lines, spelled as Megatron's training_log and evaluate_and_print_results spell them. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "train/report.h"

static const struct tm when = { .tm_year = 125, .tm_mon = 0, .tm_mday = 9, .tm_hour = 7, .tm_min = 5, .tm_sec = 3 };

static struct meg_train_stats plain(void)
{
    struct meg_train_stats v = { 0 };

    v.iteration = 20;
    v.train_iters = 1000;
    v.consumed_samples = 640;
    v.global_batch_size = 32;
    v.lm_loss = 5.4321;
    v.learning_rate = 1.5e-4;
    v.decoupled_learning_rate = v.params_norm = NAN;
    v.loss_scale = 1;
    v.grad_norm = 1.2345;
    v.num_zeros = -1;
    v.iteration_ms = 123.44;
    v.flops = 9e12;
    v.ranks = 2;
    return v;
}

static void line(void **state)
{
    struct meg_train_stats v = plain();
    struct meg_str s = { 0 };

    (void)state;
    meg_training_log_line(&s, &v, false, &when);
    assert_string_equal(s.s, " [2025-01-09 07:05:03] iteration       20/    1000 | consumed samples:          640 |"
                             " elapsed time per iteration (ms): 123.4 | learning rate: 1.500000E-04 |"
                             " global batch size:    32 | lm loss: 5.432100E+00 | loss scale: 1.0 | grad norm: 1.234 |"
                             " number of skipped iterations:   0 | number of nan iterations:   0 |\n");
    meg_str_free(&s);
}

static void every_field(void **state)
{
    struct meg_train_stats v = plain();
    struct meg_str s = { 0 };

    (void)state;
    v.skipped_samples = 2;
    v.decoupled_learning_rate = 3e-5;
    v.num_zeros = 7;
    v.params_norm = 9.5;
    v.num_nan_iterations = 1;
    meg_training_log_line(&s, &v, true, &when);
    assert_string_equal(s.s, " [2025-01-09 07:05:03] iteration       20/    1000 | consumed samples:          640 |"
                             " skipped samples:            2 | elapsed time per iteration (ms): 123.4 |"
                             " throughput per GPU (TFLOP/s/GPU): 36.5 | learning rate: 1.500000E-04 |"
                             " decoupled learning rate: 3.000000E-05 | global batch size:    32 |"
                             " lm loss: 5.432100E+00 | loss scale: 1.0 | grad norm: 1.234 | num zeros: 7 |"
                             " params norm: 9.500 | number of skipped iterations:   0 |"
                             " number of nan iterations:   1 |\n");
    meg_str_free(&s);
}

static void no_loss_and_no_norm(void **state)
{
    struct meg_train_stats v = plain();
    struct meg_str s = { 0 };

    (void)state;
    v.lm_loss = v.grad_norm = NAN;
    meg_training_log_line(&s, &v, false, &when);
    assert_string_equal(s.s, " [2025-01-09 07:05:03] iteration       20/    1000 | consumed samples:          640 |"
                             " elapsed time per iteration (ms): 123.4 | learning rate: 1.500000E-04 |"
                             " global batch size:    32 | loss scale: 1.0 |"
                             " number of skipped iterations:   0 | number of nan iterations:   0 |\n");
    meg_str_free(&s);
}

static void evaluation(void **state)
{
    struct meg_str s = { 0 };

    (void)state;
    meg_training_log_evaluation(&s, "iteration 100", 2.0);
    assert_string_equal(s.s, "--------------------------------------------------------------------------"
                             "---------------------\n"
                             " validation loss at iteration 100 | lm loss value: 2.000000E+00 | lm loss "
                             "PPL: 7.389056E+00 | \n"
                             "--------------------------------------------------------------------------"
                             "---------------------\n");
    meg_str_free(&s);
    assert_true(meg_perplexity(30) == exp(20));
    assert_true(isnan(meg_perplexity(NAN)));
    assert_true(isnan(meg_perplexity(INFINITY)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(line),
        cmocka_unit_test(every_field),
        cmocka_unit_test(no_loss_and_no_norm),
        cmocka_unit_test(evaluation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
