/*
 * err.h - errors.  MEG_ASSERT detects bugs.  meg_fail stores an error code and a message for a failure at run time.
 * meg_die prints a message and exits.
 */
#pragma once
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include "base/decls.h"

MEG_BEGIN_DECLS

enum {
    MEG_OK = 0,
    MEG_EFAIL = -1,   /* a failure that no code below describes        exit 1  */
    MEG_EUSAGE = -2,  /* wrong command line or combination of options  exit 2  */
    MEG_EFORMAT = -3, /* corrupt, invalid or unsupported input         exit 65 */
    MEG_ENOENT = -4,  /* an input does not exist                       exit 66 */
    MEG_EPEER = -5,   /* communication with another rank failed        exit 69 */
    MEG_EIO = -6,     /* an operation on a file failed                 exit 74 */
    MEG_ESTOP = -7    /* stopped by a signal after saving; can resume  exit 75 */
};

struct meg_err {
    int code;       /* one of the error codes above */
    char msg[2048]; /* the file or option, what was found, and what was expected */
};

/*
 * meg_fail - store a code and a message in *e, and return the code; e may be NULL
 * meg_fail_errno - call meg_fail with ": " and strerror(errno) appended to the message
 * The code of meg_fail_errno is MEG_ENOENT if errno is ENOENT or ENOTDIR, else MEG_EIO.
 * Both functions replace control characters, so the message is one line (meg_log_sanitize in base/log.h).
 */
int meg_fail(struct meg_err *e, int code, const char *fmt, ...) MEG_PRINTF(3, 4);
int meg_fail_errno(struct meg_err *e, const char *fmt, ...) MEG_PRINTF(2, 3);

/* Format the arguments of a variadic function after its parameter fmt into the array `text`, as snprintf does. */
#define MEG_FORMAT_ARGS(text, fmt)                                                                                     \
    do {                                                                                                               \
        va_list ap_;                                                                                                   \
                                                                                                                       \
        va_start(ap_, fmt);                                                                                            \
        vsnprintf(text, sizeof(text), fmt, ap_);                                                                       \
        va_end(ap_);                                                                                                   \
    } while (0)

/* Return the exit status of an error code, as listed above. */
int meg_exit_status(int code);

/*
 * Print "PROGRAM: message" on stderr, or "PROGRAM[RANK]: message" on ranks other than 0.  Call the hook that meg_on_die
 * set, if any, and exit with the status of the code.  meg_usage and meg_usage_err use MEG_EUSAGE and refer to --help.
 * The commands in cmd/ call these functions.  Functions in lib/ return an error where possible.  Some of them end the
 * process, for example if options cannot be parsed, a small host allocation fails or a collective fails.
 */
void meg_die(int code, const char *fmt, ...) MEG_NORETURN MEG_PRINTF(2, 3);
void meg_die_err(const struct meg_err *e) MEG_NORETURN;
void meg_usage(const char *fmt, ...) MEG_NORETURN MEG_PRINTF(1, 2);
void meg_usage_err(const struct meg_err *e) MEG_NORETURN;

/*
 * Set the hook that meg_die, meg_die_err, meg_usage and meg_usage_err call before they exit.  NULL removes the hook.
 * The arguments of the hook are the exit status, the message and ctx.  If the hook itself calls meg_die, meg_die does
 * not call the hook again.  Communicators use the hook to end the other ranks.
 */
void meg_on_die(void (*hook)(int status, const char *why, void *ctx), void *ctx);

/*
 * Write s [n] to standard output and flush it.  Returns MEG_EIO on failure; meg_close_stdout reports the first failure
 * as well.
 */
int meg_write_stdout(const char *s, size_t n, struct meg_err *e);

/*
 * Flush and close standard output.  main calls this function last.  Returns 0, or exits by meg_die with MEG_EIO if a
 * write failed.
 */
int meg_close_stdout(void);

/* Return the program name for messages, the last component of argv[0]. */
const char *meg_progname(void);

/* Assert an invariant: print file, line and condition and abort if it does not hold.  Enabled in every build. */
#define MEG_ASSERT(cond) ((cond) ? (void)0 : meg_assert_failed(__FILE__, __LINE__, #cond))
void meg_assert_failed(const char *file, int line, const char *cond) MEG_NORETURN;

/*
 * Assert a == b, a <= b or a < b for integers, which are compared as int64_t.  On failure, a and b are evaluated a
 * second time and both values are printed.
 */
#define MEG_ASSERT_EQ(a, b) MEG_ASSERT_COMPARE(a, ==, b)
#define MEG_ASSERT_LE(a, b) MEG_ASSERT_COMPARE(a, <=, b)
#define MEG_ASSERT_LT(a, b) MEG_ASSERT_COMPARE(a, <, b)
#define MEG_ASSERT_COMPARE(a, op, b)                                                                                   \
    ((int64_t)(a)op(int64_t)(b)                                                                                        \
         ? (void)0                                                                                                     \
         : meg_assert_compare_failed(__FILE__, __LINE__, #a " " #op " " #b, (int64_t)(a), (int64_t)(b)))
void meg_assert_compare_failed(const char *file, int line, const char *cond, int64_t a, int64_t b) MEG_NORETURN;

MEG_END_DECLS
