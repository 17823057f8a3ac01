/*
 * log.h - words for people, on stderr, as "meg-train: message"; the product goes to stdout.
 * Rank 0 speaks; other ranks only warn, as "meg-train[3]: message".
 */
#ifndef MEG_BASE_LOG_H
#define MEG_BASE_LOG_H

#include <stdarg.h>
#include <stdbool.h>

#include "base/decls.h"

MEG_BEGIN_DECLS

enum { MEG_LOG_ERROR, MEG_LOG_WARN, MEG_LOG_INFO, MEG_LOG_DEBUG };

/* What is printed: up to MEG_LOG_WARN with -q, MEG_LOG_INFO at start, MEG_LOG_DEBUG with -v. */
void meg_log_set_level(int level);
/* The rank this process has in its run; 0 until told. */
void meg_log_set_rank(int rank);
/* Return the rank set by meg_log_set_rank, 0 before. */
int meg_log_rank(void);

/* Before a failure that rank 0 most likely has, too: other ranks wait, so that it says so and ends them. */
void meg_log_rank0_first(void);

/*
 * Print one message, without a newline at its end.  It reaches stderr in one piece, and as one line: see
 * meg_log_sanitize.
 */
void meg_warn(const char *fmt, ...) MEG_PRINTF(1, 2);
void meg_info(const char *fmt, ...) MEG_PRINTF(1, 2);
void meg_debug(const char *fmt, ...) MEG_PRINTF(1, 2);
void meg_vlog(int level, const char *fmt, va_list ap) MEG_PRINTF(2, 0);
/* The same of a text with line breaks of its own, in which what is quoted was neutralised. */
void meg_log_lines(int level, const char *text);
/*
 * Replace each control character of text but tabs by ?, so that a name or a text that a message quotes
 * cannot steer a terminal, nor begin a line that looks like another message.
 */
void meg_log_sanitize(char *text);

/*
 * A line that says how far the work is.  Where stderr is a terminal it is redrawn in place,
 * ten times a second at most; elsewhere the same words are a note every plain_s seconds (0: never).
 * meg_progress_show may be called as often as there is news: it prints only when due.
 * meg_progress_end leaves the last line drawn and goes to the next one.
 * One progress line is open at a time, shown by one thread; messages clear it and it is drawn again
 * below them.
 */
struct meg_progress {
    double plain_s, next_s;
    bool is_tty, is_drawn;
};
void meg_progress_init(struct meg_progress *p, double plain_s);
void meg_progress_show(struct meg_progress *p, const char *fmt, ...) MEG_PRINTF(2, 3);
void meg_progress_end(struct meg_progress *p);

MEG_END_DECLS

#endif
