/* The log lines of Megatron's training_log and evaluate_and_print_results, byte by byte. */
#include <math.h>
#include <string.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "logging/training_log.h"

static const struct tm when = { .tm_year = 125, .tm_mon = 0, .tm_mday = 9, .tm_hour = 7, .tm_min = 5, .tm_sec = 3 };

static struct meg_iteration_stats typical_stats(void)
{
    struct meg_iteration_stats stats = { 0 };

    stats.iteration = 20;
    stats.train_iters = 1000;
    stats.consumed_samples = 640;
    stats.global_batch_size = 32;
    stats.loss = (struct meg_named_losses){ 1, { "lm loss" }, { 5.4321 } };
    stats.learning_rate = 1.5e-4;
    stats.decoupled_learning_rate = stats.params_norm = NAN;
    stats.loss_scale = 1;
    stats.grad_norm = 1.2345;
    stats.num_zeros = -1;
    stats.iteration_ms = 123.44;
    stats.flops = 9e12;
    stats.ranks = 2;
    return stats;
}

static void an_iteration_has_megatrons_line(void **state)
{
    struct meg_iteration_stats stats = typical_stats();
    struct meg_str s = { 0 };

    (void)state;
    meg_training_log_line(&s, &stats, false, &when);
    assert_string_equal(s.s, " [2025-01-09 07:05:03] iteration       20/    1000 | consumed samples:          640 |"
                             " elapsed time per iteration (ms): 123.4 | learning rate: 1.500000E-04 |"
                             " global batch size:    32 | lm loss: 5.432100E+00 | loss scale: 1.0 | grad norm: 1.234 |"
                             " number of skipped iterations:   0 | number of nan iterations:   0 |\n");
    meg_str_free(&s);
}

static void optional_fields_have_megatrons_order(void **state)
{
    struct meg_iteration_stats stats = typical_stats();
    struct meg_str s = { 0 };

    (void)state;
    stats.skipped_samples = 2;
    stats.decoupled_learning_rate = 3e-5;
    stats.num_zeros = 7;
    stats.params_norm = 9.5;
    stats.num_nan_iterations = 1;
    stats.loss = (struct meg_named_losses){ 2, { "lm loss", "sop loss" }, { 5.4321, 0.69 } };
    meg_training_log_line(&s, &stats, true, &when);
    assert_string_equal(s.s, " [2025-01-09 07:05:03] iteration       20/    1000 | consumed samples:          640 |"
                             " skipped samples:            2 | elapsed time per iteration (ms): 123.4 |"
                             " throughput per GPU (TFLOP/s/GPU): 36.5 | learning rate: 1.500000E-04 |"
                             " decoupled learning rate: 3.000000E-05 | global batch size:    32 |"
                             " lm loss: 5.432100E+00 | sop loss: 6.900000E-01 | loss scale: 1.0 |"
                             " grad norm: 1.234 | num zeros: 7 |"
                             " params norm: 9.500 | number of skipped iterations:   0 |"
                             " number of nan iterations:   1 |\n");
    meg_str_free(&s);
}

static void a_loss_or_norm_that_is_nan_is_left_out(void **state)
{
    struct meg_iteration_stats stats = typical_stats();
    struct meg_str s = { 0 };

    (void)state;
    stats.loss.value[0] = stats.grad_norm = NAN;
    meg_training_log_line(&s, &stats, false, &when);
    assert_string_equal(s.s, " [2025-01-09 07:05:03] iteration       20/    1000 | consumed samples:          640 |"
                             " elapsed time per iteration (ms): 123.4 | learning rate: 1.500000E-04 |"
                             " global batch size:    32 | loss scale: 1.0 |"
                             " number of skipped iterations:   0 | number of nan iterations:   0 |\n");
    meg_str_free(&s);
}

static void arguments_have_megatrons_form(void **state)
{
    struct meg_str s = { 0 };

    (void)state;
    meg_training_log_arguments(&s, "# model\nseq-length = 64\nFp16 = no\nbf16 = yes\n"
                                   "a-name-of-exactly-forty-seven-characters-in-all = x y\n");
    assert_string_equal(s.s, "------------------------ arguments ------------------------\n"
                             "  a_name_of_exactly_forty_seven_characters_in_all . x y\n"
                             "  bf16 ............................................ True\n"
                             "  Fp16 ............................................ False\n"
                             "  seq_length ...................................... 64\n"
                             "-------------------- end of arguments ---------------------\n");
    meg_str_free(&s);
}

static void an_evaluation_is_framed_by_dashes(void **state)
{
    struct meg_named_losses loss = { 1, { "lm loss", "sop loss" }, { 2.0, 0.0 } };
    struct meg_str s = { 0 };

    (void)state;
    meg_training_log_evaluation(&s, NULL, "iteration 100", &loss);
    assert_string_equal(s.s, "--------------------------------------------------------------------------"
                             "---------------------\n"
                             " validation loss at iteration 100 | lm loss value: 2.000000E+00 | lm loss "
                             "PPL: 7.389056E+00 | \n"
                             "--------------------------------------------------------------------------"
                             "---------------------\n");
    meg_str_free(&s);
    loss.n = 2;
    meg_training_log_evaluation(&s, NULL, "iteration 100", &loss);
    assert_non_null(strstr(s.s,
                           "| lm loss value: 2.000000E+00 | lm loss PPL: 7.389056E+00 | sop loss value: 0.000000E+00 | "
                           "sop loss PPL: 1.000000E+00 | \n"));
    meg_str_free(&s);
    meg_training_log_evaluation(&s, "en", "iteration 100", &loss);
    assert_non_null(strstr(s.s, "-\nen loss at iteration 100 | lm loss value: 2.000000E+00 | "));
    meg_str_free(&s);
    assert_true(meg_training_log_perplexity(30) == exp(20));
    assert_true(isnan(meg_training_log_perplexity(NAN)));
    assert_true(isnan(meg_training_log_perplexity(INFINITY)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_iteration_has_megatrons_line),
        cmocka_unit_test(optional_fields_have_megatrons_order),
        cmocka_unit_test(a_loss_or_norm_that_is_nan_is_left_out),
        cmocka_unit_test(arguments_have_megatrons_form),
        cmocka_unit_test(an_evaluation_is_framed_by_dashes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
