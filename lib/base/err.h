/*
 * err.h - the three kinds of trouble: a bug (MEG_ASSERT), the world (a negative
 * code and a message that stands alone), a decision to stop (meg_die).
 */
#ifndef MEG_BASE_ERR_H
#define MEG_BASE_ERR_H

#include <stddef.h>
#include <stdint.h>

#include "base/decls.h"

MEG_BEGIN_DECLS

enum {
    MEG_OK = 0,
    MEG_EFAIL = -1,   /* the work failed                               exit 1  */
    MEG_EUSAGE = -2,  /* wrong command line, or an option rule broken  exit 2  */
    MEG_EFORMAT = -3, /* corrupt input                                 exit 65 */
    MEG_ENOENT = -4,  /* input missing                                 exit 66 */
    MEG_EPEER = -5,   /* a peer was lost                               exit 69 */
    MEG_EIO = -6,     /* input or output failed                        exit 74 */
    MEG_ESTOP = -7    /* stopped on request, state saved: requeue me   exit 75 */
};

struct meg_err {
    int code;       /* one of the above; set together with msg */
    char msg[2048]; /* names the file or option, what was found, what was expected */
};

/*
 * meg_fail - fill *e (which may be NULL) with code and message; returns code.
 * meg_fail_errno - the same, with ": " and strerror(errno) added; the code is MEG_ENOENT
 * where errno is ENOENT or ENOTDIR, else MEG_EIO.
 * The message is one line: meg_log_sanitize (base/log.h) has seen it.
 */
int meg_fail(struct meg_err *e, int code, const char *fmt, ...) MEG_PRINTF(3, 4);
int meg_fail_errno(struct meg_err *e, const char *fmt, ...) MEG_PRINTF(2, 3);

/* The exit status a code stands for (the one mapping); MEG_OK gives 0. */
int meg_exit_status(int code);

/*
 * Ending the process, for cmd/ (in lib/ only option parsing and small host allocations do).
 * Each prints "PROGRAM: message" on stderr, calls the hook and exits with the code's status.
 * meg_usage and meg_usage_err are MEG_EUSAGE and add where to find help.
 */
void meg_die(int code, const char *fmt, ...) MEG_NORETURN MEG_PRINTF(2, 3);
void meg_die_err(const struct meg_err *e) MEG_NORETURN;
void meg_usage(const char *fmt, ...) MEG_NORETURN MEG_PRINTF(1, 2);
void meg_usage_err(const struct meg_err *e) MEG_NORETURN;

/*
 * Set a hook that meg_die calls once, with the exit status, its message and ctx, before it ends the process; NULL: none.
 * Communicators use it to end the other ranks.
 */
void meg_on_die(void (*hook)(int status, const char *why, void *ctx), void *ctx);

/* Write s [n] to standard output and flush it.  MEG_EIO on failure. */
int meg_write_stdout(const char *s, size_t n, struct meg_err *e);

/* Flush standard output; dies with MEG_EIO where that fails, else returns 0: main's last line. */
int meg_close_stdout(void);

/* The last part of argv[0], as in messages. */
const char *meg_progname(void);

/* A broken invariant: prints file, line and condition and aborts.  On in every build. */
#define MEG_ASSERT(cond) ((cond) ? (void)0 : meg_assert_failed(__FILE__, __LINE__, #cond))
void meg_assert_failed(const char *file, int line, const char *cond) MEG_NORETURN;

/*
 * Assert a == b, a <= b or a < b of integers, compared as int64_t.  A failure also prints both values, for which it
 * evaluates a and b once more.
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

#endif
