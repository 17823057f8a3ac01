/* The JSON lines of --log-json, and the lines that a resumed run keeps. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include "file/file.h"
#include "logging/metrics.h"
#include "tmp.h"

static char path[TMP_NAME];

static void content_is(const char *want)
{
    struct meg_str s = { 0 };

    assert_int_equal(meg_read_file(path, &s, NULL), 0);
    assert_string_equal(s.s ? s.s : "", want);
    meg_str_free(&s);
}

static void write_text(const char *text)
{
    assert_int_equal(meg_write_file(path, text, strlen(text), NULL), 0);
}

#define L1 "{\"iteration\":10,\"lm_loss\":3}\n"
#define L2 "{\"iteration\":20,\"lm_loss\":2}\n"
#define L3 "{\"iteration\":20,\"split\":\"valid\",\"lm_loss\":null}\n"
#define LAST "{\"iteration\":20,\"split\":\"valid\",\"after_training\":true,\"lm_loss\":2}\n"
#define L4 "{\"iteration\":30,\"lm_loss\":1}\n"

static void a_line_has_the_numbers_that_were_given(void **state)
{
    struct meg_append_file m = { 0 };
    struct meg_iteration_stats stats = { 0 };
    const struct meg_evaluation last = {
        .split = "valid", .is_last = true, .iteration = 5, .consumed_samples = 40, .loss = { 1, { "lm loss" }, { 0 } }
    };

    (void)state;
    write_text("");
    stats.iteration = 5;
    stats.consumed_samples = 40;
    stats.global_batch_size = 8;
    stats.loss = (struct meg_named_losses){ 2, { "lm loss", "sop loss" }, { 2.5, 0.5 } };
    stats.learning_rate = 1e-4;
    stats.decoupled_learning_rate = stats.params_norm = stats.grad_norm = NAN;
    stats.num_zeros = -1;
    stats.loss_scale = 1;
    stats.iteration_ms = 2;
    stats.tokens_per_s = 1000;
    stats.flops = 3e9;
    stats.skipped_samples = 6;
    stats.num_skipped_iterations = 2;
    stats.num_nan_iterations = 1;
    assert_int_equal(meg_metrics_open(&m, path, 0, NULL), 0);
    assert_int_equal(meg_metrics_interval(&m, &stats, NULL), 0);
    assert_int_equal(meg_metrics_evaluation(&m, &last, NULL), 0);
    meg_append_file_close(&m);
    content_is("{\"iteration\":5,\"consumed_samples\":40,\"skipped_samples\":6,\"global_batch_size\":8,"
               "\"lm_loss\":2.5,\"sop_loss\":0.5,"
               "\"learning_rate\":0.0001,\"loss_scale\":1,\"grad_norm\":null,\"skipped_iterations\":2,"
               "\"nan_iterations\":1,\"iteration_ms\":2,\"tokens_per_s\":1000,\"flops_per_iteration\":3e+"
               "09,"
               "\"tflops_per_s\":1.5}\n"
               "{\"iteration\":5,\"consumed_samples\":40,\"split\":\"valid\",\"after_training\":true,\"lm_"
               "loss\":0,\"ppl\":1}\n");
}

static void a_resumed_run_removes_later_lines(void **state)
{
    struct meg_append_file m = { 0 };

    (void)state;
    write_text(L1 L2 L3 L4 "{\"iteration\":40,\"lm_");
    assert_int_equal(meg_metrics_open(&m, path, 20, NULL), 0);
    meg_append_file_close(&m);
    content_is(L1 L2 L3);
    write_text(L1 L2 L3 LAST);
    assert_int_equal(meg_metrics_open(&m, path, 20, NULL), 0);
    meg_append_file_close(&m);
    content_is(L1 L2 L3);
    assert_int_equal(meg_metrics_open(&m, path, 0, NULL), 0);
    meg_append_file_close(&m);
    content_is("");
}

static void a_file_of_another_program_is_refused_and_unchanged(void **state)
{
    struct meg_append_file m = { 0 };
    struct meg_err e;

    static const char *const texts[] = { L1 "dear diary\n", L1 "dear diary", L1 "{\"text\":\"dear diary\"}" };

    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        write_text(texts[i]);
        assert_int_equal(meg_metrics_open(&m, path, 0, &e), MEG_EFORMAT);
        assert_non_null(strstr(e.msg, "line 2: not a JSON object of metrics"));
        assert_null(m.path);
        content_is(texts[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_has_the_numbers_that_were_given),
        cmocka_unit_test(a_resumed_run_removes_later_lines),
        cmocka_unit_test(a_file_of_another_program_is_refused_and_unchanged),
    };
    int r, fd = tmp_file(path, "metrics");

    close(fd);
    r = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    return r;
}
