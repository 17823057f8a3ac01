/* Log messages by level and rank, replaced control characters, and the progress line on and off a terminal. */
#define _GNU_SOURCE /* posix_openpt */
#include "child.h"

#include <sys/ioctl.h>

#include "base/clock.h"
#include "base/log.h"

struct how {
    int level, rank;
};

static void speak(void *arg)
{
    const struct how *how = arg;

    meg_log_set_level(how->level);
    meg_log_set_rank(how->rank);
    meg_warn("w%d", 1);
    meg_info("n%d", 2);
    meg_debug("d%d", 3);
}

static void levels_and_ranks_filter_messages(void **state)
{
    static const struct {
        struct how how;
        const char *want;
    } cases[] = {
        { { MEG_LOG_WARN, 0 }, "log: w1\n" },
        { { MEG_LOG_INFO, 0 }, "log: w1\nlog: n2\n" },
        { { MEG_LOG_DEBUG, 0 }, "log: w1\nlog: n2\nlog: d3\n" },
        { { MEG_LOG_DEBUG, 3 }, "log[3]: w1\n" },
    };
    struct child c;
    size_t i;

    (void)state;
    for (i = 0; i < sizeof cases / sizeof *cases; i++) {
        child_run(&c, speak, (void *)&cases[i].how);
        assert_string_equal(c.err, cases[i].want);
        assert_string_equal(c.out, "");
    }
}

static void quote(void *arg)
{
    (void)arg;
    meg_warn("'%s'\tand %s", "\033[2J\r\177\nlog: all is well",
             "\xC3\xA9\xC2\x9B"
             "2J\xC2\xA0");
    meg_log_lines(MEG_LOG_WARN, "two\nlines");
}

static void control_characters_in_messages_are_replaced(void **state)
{
    struct child c;

    (void)state;
    child_run(&c, quote, NULL);
    assert_string_equal(c.err, "log: '?[2J?"
                               "??log: all is well'\tand \xC3\xA9?"
                               "?2J\xC2\xA0\nlog: two\nlines\n");
}

static void progress(void *arg)
{
    struct meg_progress p;
    double start = meg_now_s();
    int i;

    meg_progress_init(&p, *(double *)arg);
    for (i = 0; meg_now_s() - start < 0.25; i++)
        meg_progress_show(&p, "%d done", i);
    meg_progress_end(&p);
}

static int lines(const char *text)
{
    int n = 0;

    for (; *text; text++)
        n += *text == '\n';
    return n;
}

static void progress_off_a_terminal_is_logged_at_intervals(void **state)
{
    double never = 0, often = 0.1;
    struct child c;

    (void)state;
    child_run(&c, progress, &never);
    assert_string_equal(c.err, "");
    child_run(&c, progress, &often);
    assert_in_range(lines(c.err), 1, 2); /* at 0.1 s and, unless the machine is busy, at 0.2 s */
    assert_memory_equal(c.err, "log: ", 5);
    assert_null(strchr(c.err, '\r'));
}

static void progress_and_a_note(void *arg)
{
    struct winsize w = { .ws_row = 24, .ws_col = 12 };
    struct meg_progress p;

    dup2(*(int *)arg, STDERR_FILENO);
    ioctl(STDERR_FILENO, TIOCSWINSZ, &w);
    meg_progress_init(&p, 0);
    meg_progress_show(&p, "a line longer than the terminal");
    meg_progress_show(&p, "not due");
    meg_info("hello");
    meg_progress_end(&p); /* the message has cleared the line */
    p.next_s = 0;
    meg_progress_show(&p, "last");
    meg_progress_end(&p);
}

static void progress_on_a_terminal_is_redrawn(void **state)
{
    static const char want[] = "\r\033[Ka line long\r\033[Klog: hello\r\n\r\033[Klast\r\n";
    char got[256] = "";
    struct child c;
    size_t n = 0;
    ssize_t k;
    int master = posix_openpt(O_RDWR | O_NOCTTY), slave = -1;

    (void)state;
    if (master < 0 || grantpt(master) < 0 || unlockpt(master) < 0 ||
        (slave = open(ptsname(master), O_RDWR | O_NOCTTY)) < 0) {
        print_message("# no pseudo-terminals here\n");
        skip();
    }
    child_run(&c, progress_and_a_note, &slave);
    while (n < sizeof want - 1 && (k = read(master, got + n, sizeof got - 1 - n)) > 0)
        n += (size_t)k;
    assert_string_equal(got, want);
    close(slave);
    close(master);
}

static void the_clock_is_monotonic(void **state)
{
    double a = meg_now_s(), b;

    (void)state;
    usleep(2000);
    b = meg_now_s();
    assert_true(b - a >= 0.002 && b - a < 60);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(levels_and_ranks_filter_messages),
        cmocka_unit_test(control_characters_in_messages_are_replaced),
        cmocka_unit_test(progress_off_a_terminal_is_logged_at_intervals),
        cmocka_unit_test(progress_on_a_terminal_is_redrawn),
        cmocka_unit_test(the_clock_is_monotonic),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
