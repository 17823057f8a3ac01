/* err.c - errors, assertions, and the end of the process. */
#define _GNU_SOURCE /* program_invocation_short_name */
#include "base/err.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/log.h"

static void (*die_hook)(int status, const char *why, void *ctx);
static void *die_ctx;

static MEG_PRINTF(3, 0) void set(struct meg_err *e, int code, const char *fmt, va_list ap)
{
    e->code = code;
    vsnprintf(e->msg, sizeof e->msg, fmt, ap);
    meg_log_sanitize(e->msg);
}

int meg_fail(struct meg_err *e, int code, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    if (e)
        set(e, code, fmt, ap);
    va_end(ap);
    return code;
}

int meg_fail_errno(struct meg_err *e, const char *fmt, ...)
{
    int no = errno;
    int code = no == ENOENT || no == ENOTDIR ? MEG_ENOENT : MEG_EIO;
    va_list ap;
    size_t n;

    if (!e)
        return code;
    va_start(ap, fmt);
    set(e, code, fmt, ap);
    va_end(ap);
    n = strlen(e->msg);
    snprintf(e->msg + n, sizeof e->msg - n, ": %s", strerror(no));
    return code;
}

int meg_exit_status(int code)
{
    switch (code) {
    case MEG_OK: return 0;
    case MEG_EUSAGE: return 2;
    case MEG_EFORMAT: return 65;
    case MEG_ENOENT: return 66;
    case MEG_EPEER: return 69;
    case MEG_EIO: return 74;
    case MEG_ESTOP: return 75;
    default: return 1;
    }
}

void meg_on_die(void (*hook)(int status, const char *why, void *ctx), void *ctx)
{
    die_hook = hook;
    die_ctx = ctx;
}

static MEG_NORETURN void die_with(int code, const char *text, const char *why)
{
    void (*hook)(int status, const char *why, void *ctx) = die_hook;

    meg_log_lines(MEG_LOG_ERROR, text);
    die_hook = NULL; /* if the hook calls meg_die, it is not called again */
    if (hook)
        hook(meg_exit_status(code), why, die_ctx);
    exit(meg_exit_status(code));
}

void meg_die_err(const struct meg_err *e)
{
    die_with(e->code, e->msg, e->msg);
}

void meg_die(int code, const char *fmt, ...)
{
    struct meg_err e;
    va_list ap;

    va_start(ap, fmt);
    set(&e, code, fmt, ap);
    va_end(ap);
    meg_die_err(&e);
}

void meg_usage_err(const struct meg_err *e)
{
    char text[sizeof e->msg + 300];

    snprintf(text, sizeof text, "%s\nTry '%s --help'.", e->msg, meg_progname());
    die_with(MEG_EUSAGE, text, e->msg);
}

void meg_usage(const char *fmt, ...)
{
    struct meg_err e;
    va_list ap;

    va_start(ap, fmt);
    set(&e, MEG_EUSAGE, fmt, ap);
    va_end(ap);
    meg_usage_err(&e);
}

/*
 * If standard input, output or error is closed, open /dev/null for the wrong direction instead: reading and writing
 * still fail, and no file that is opened later gets this descriptor, to which messages would be written.
 */
__attribute__((constructor)) static void reserve_standard_descriptors(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0)
            (void)!open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
}

static int stdout_errno; /* errno of the first call of meg_write_stdout that failed, or 0 */

int meg_write_stdout(const char *s, size_t n, struct meg_err *e)
{
    if (n == 0 || (fwrite(s, 1, n, stdout) == n && fflush(stdout) == 0))
        return 0;
    if (!stdout_errno)
        stdout_errno = errno;
    return meg_fail_errno(e, "standard output");
}

int meg_close_stdout(void)
{
    if (fflush(stdout) != 0 && !stdout_errno)
        stdout_errno = errno;
    if (ferror(stdout))
        meg_die(MEG_EIO, "standard output: %s", stdout_errno ? strerror(stdout_errno) : "write failed");
    if (close(STDOUT_FILENO) != 0 && errno != EBADF) /* a network file system may report a full disk only now */
        meg_die(MEG_EIO, "standard output: %s", strerror(errno));
    return 0;
}

const char *meg_progname(void)
{
    return program_invocation_short_name;
}

void meg_assert_failed(const char *file, int line, const char *cond)
{
    fprintf(stderr, "%s: %s:%d: bug: %s does not hold\n", meg_progname(), file, line, cond);
    abort();
}

void meg_assert_compare_failed(const char *file, int line, const char *cond, int64_t a, int64_t b)
{
    fprintf(stderr, "%s: %s:%d: bug: %s does not hold (%" PRId64 " and %" PRId64 ")\n", meg_progname(), file, line,
            cond, a, b);
    abort();
}
