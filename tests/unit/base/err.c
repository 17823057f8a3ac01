/* Error messages, exit statuses, and the functions that end the process. */
#include "child.h"

#include <errno.h>
#include <signal.h>

#include "base/err.h"

static void each_code_has_its_exit_status(void **state)
{
    (void)state;
    assert_int_equal(meg_exit_status(MEG_OK), 0);
    assert_int_equal(meg_exit_status(MEG_EFAIL), 1);
    assert_int_equal(meg_exit_status(MEG_EUSAGE), 2);
    assert_int_equal(meg_exit_status(MEG_EFORMAT), 65);
    assert_int_equal(meg_exit_status(MEG_ENOENT), 66);
    assert_int_equal(meg_exit_status(MEG_EPEER), 69);
    assert_int_equal(meg_exit_status(MEG_EIO), 74);
    assert_int_equal(meg_exit_status(MEG_ESTOP), 75);
}

static void meg_fail_fills_the_message_and_returns_the_code(void **state)
{
    struct meg_err e;

    (void)state;
    assert_int_equal(meg_fail(&e, MEG_EFORMAT, "%s: %d bytes", "a.idx", 3), MEG_EFORMAT);
    assert_int_equal(e.code, MEG_EFORMAT);
    assert_string_equal(e.msg, "a.idx: 3 bytes");
    assert_int_equal(meg_fail(NULL, MEG_EPEER, "unheard"), MEG_EPEER);
}

static void meg_fail_errno_appends_strerror(void **state)
{
    struct meg_err e;

    (void)state;
    errno = ENOENT;
    assert_int_equal(meg_fail_errno(&e, "a%s", "b"), MEG_ENOENT);
    assert_string_equal(e.msg, "ab: No such file or directory");
    errno = ENOTDIR;
    assert_int_equal(meg_fail_errno(&e, "a"), MEG_ENOENT);
    errno = ENOSPC;
    assert_int_equal(meg_fail_errno(&e, "a"), MEG_EIO);
    assert_int_equal(e.code, MEG_EIO);
    assert_string_equal(e.msg, "a: No space left on device");
}

/* File names may contain newlines; the part after one must not look like a separate message. */
#define FORGED "a\nerr: done\n\033[2J"
#define QUOTED                                                                                                         \
    "a?err: done?"                                                                                                     \
    "?[2J"

static void die_of(void *how)
{
    switch (*(int *)how) {
    case 0: meg_die(MEG_EIO, "%s: bad", FORGED);
    case 1: meg_usage("'%s': bad", FORGED);
    default: meg_die_err(&(struct meg_err){ MEG_EIO, "one\nerr: two" }); /* prints newlines of a message as they are */
    }
}

static void a_newline_in_a_message_is_sanitized(void **state)
{
    static const char *const want[] = { "err: " QUOTED ": bad\n", "err: '" QUOTED "': bad\nTry 'err --help'.\n",
                                        "err: one\nerr: two\n" };
    struct child c;
    struct meg_err e;

    (void)state;
    meg_fail(&e, MEG_EIO, "%s: bad", FORGED);
    assert_string_equal(e.msg, QUOTED ": bad");
    errno = EIO;
    meg_fail_errno(&e, "%s", FORGED);
    assert_string_equal(e.msg, QUOTED ": Input/output error");
    for (int how = 0; how < 3; how++) {
        child_run(&c, die_of, &how);
        assert_string_equal(c.err, want[how]);
    }
}

static void a_message_longer_than_the_buffer_is_truncated(void **state)
{
    struct meg_err e;

    (void)state;
    errno = EIO;
    meg_fail_errno(&e, "%3000d", 1);
    assert_int_equal(strlen(e.msg), sizeof e.msg - 1);
}

static void die(void *arg)
{
    (void)arg;
    printf("half a product\n");
    meg_die(MEG_EFORMAT, "line %d is bad", 7);
}

static void meg_die_prints_flushes_and_exits(void **state)
{
    struct child c;

    (void)state;
    child_run(&c, die, NULL);
    assert_int_equal(c.status, 65);
    assert_string_equal(c.err, "err: line 7 is bad\n");
    assert_string_equal(c.out, "half a product\n");
}

static int hook_ctx;

static void hook(int status, const char *why, void *ctx)
{
    assert_ptr_equal(ctx, &hook_ctx);
    fprintf(stderr, "hook %d, %s\n", status, why);
    meg_die(MEG_EFAIL, "inner");
}

static void die_hooked(void *arg)
{
    struct meg_err e;

    (void)arg;
    meg_on_die(hook, &hook_ctx);
    meg_fail(&e, MEG_EPEER, "rank 3 is gone");
    meg_die_err(&e);
}

static void the_die_hook_runs_once(void **state)
{
    struct child c;

    (void)state;
    child_run(&c, die_hooked, NULL);
    assert_int_equal(c.status, 1);
    assert_string_equal(c.err, "err: rank 3 is gone\nhook 69, rank 3 is gone\nerr: inner\n");
}

static void usage(void *arg)
{
    (void)arg;
    meg_usage("--output-prefix is required");
}

static void a_usage_error_names_the_help_option(void **state)
{
    struct child c;

    (void)state;
    child_run(&c, usage, NULL);
    assert_int_equal(c.status, 2);
    assert_string_equal(c.err, "err: --output-prefix is required\nTry 'err --help'.\n");
}

static void finish_on(void *path)
{
    assert_non_null(freopen(path, "w", stdout));
    printf("the product\n");
    exit(meg_close_stdout());
}

static void finish_closed(void *arg)
{
    (void)arg;
    close(STDOUT_FILENO);
    exit(meg_close_stdout());
}

static void closing_stdout_on_a_full_disk_fails(void **state)
{
    struct child c;

    (void)state;
    child_run(&c, finish_on, "/dev/full");
    assert_int_equal(c.status, 74);
    assert_string_equal(c.err, "err: standard output: No space left on device\n");
    child_run(&c, finish_on, "/dev/null");
    assert_int_equal(c.status, 0);
    child_run(&c, finish_closed, NULL); /* nothing was printed, so nothing is lost */
    assert_int_equal(c.status, 0);
}

static void assert_one_is_two(void *arg)
{
    (void)arg;
    MEG_ASSERT(1 == 2);
}

static void a_failed_assertion_aborts(void **state)
{
    struct child c;

    (void)state;
    child_run(&c, assert_one_is_two, NULL);
    assert_int_equal(c.status, 128 + SIGABRT);
    assert_non_null(strstr(c.err, "tests/unit/base/err.c:"));
    assert_non_null(strstr(c.err, "1 == 2 does not hold"));
}

static void compare(void *arg)
{
    int64_t rows = 3;
    int32_t cols = 4;

    (void)arg;
    MEG_ASSERT_EQ(rows, 3);
    MEG_ASSERT_LE(rows, cols);
    MEG_ASSERT_LT(rows, cols);
    MEG_ASSERT_EQ(rows + 1, cols * 2);
}

static void a_failed_comparison_prints_both_values(void **state)
{
    struct child c;

    (void)state;
    child_run(&c, compare, NULL);
    assert_int_equal(c.status, 128 + SIGABRT);
    assert_non_null(strstr(c.err, "tests/unit/base/err.c:"));
    assert_non_null(strstr(c.err, "bug: rows + 1 == cols * 2 does not hold (4 and 8)"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_code_has_its_exit_status),
        cmocka_unit_test(meg_fail_fills_the_message_and_returns_the_code),
        cmocka_unit_test(meg_fail_errno_appends_strerror),
        cmocka_unit_test(a_newline_in_a_message_is_sanitized),
        cmocka_unit_test(a_message_longer_than_the_buffer_is_truncated),
        cmocka_unit_test(meg_die_prints_flushes_and_exits),
        cmocka_unit_test(the_die_hook_runs_once),
        cmocka_unit_test(a_usage_error_names_the_help_option),
        cmocka_unit_test(closing_stdout_on_a_full_disk_fails),
        cmocka_unit_test(a_failed_assertion_aborts),
        cmocka_unit_test(a_failed_comparison_prints_both_values),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
