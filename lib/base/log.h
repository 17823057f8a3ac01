/*
 * log.h - log messages and the progress line, on stderr.  Messages have the form "meg-train: message".  Ranks other
 * than 0 print only warnings and errors, as "meg-train[3]: message".
 */
#pragma once
#include <stdbool.h>
#include "base/decls.h"

enum { MEG_LOG_ERROR, MEG_LOG_WARN, MEG_LOG_INFO, MEG_LOG_DEBUG };

/* Print messages up to this level: MEG_LOG_WARN with -q, MEG_LOG_DEBUG with -v.  Initially MEG_LOG_INFO. */
void meg_log_set_level(int level);
/* Return whether messages of this level are printed on rank 0. */
bool meg_log_is_on(int level);
/* Set the rank of this process, initially 0. */
void meg_log_set_rank(int rank);
/* Return the rank set by meg_log_set_rank; default: 0. */
int meg_log_rank(void);

/*
 * Sleep for 3 seconds on ranks other than 0.  Call this function before reporting an error that rank 0 detects as well.
 * During the sleep, rank 0 reports the error for all ranks and ends them.
 */
void meg_log_rank0_first(void);

/*
 * Print one message; fmt has no trailing newline.  The message is sanitized to one line.
 */
void meg_warn(const char *fmt, ...) MEG_PRINTF(1, 2);
void meg_info(const char *fmt, ...) MEG_PRINTF(1, 2);
void meg_debug(const char *fmt, ...) MEG_PRINTF(1, 2);
/* Print a text that may contain newlines.  The caller must sanitize any names and values that it quotes. */
void meg_log_lines(int level, const char *text);
/*
 * Replace each byte of the control characters in `text`, except tabs, by ?.  Otherwise, a name quoted in a message
 * could send escape sequences to a terminal or begin a line that looks like another message.
 */
void meg_log_sanitize(char *text);

/*
 * A progress line.  If stderr is a terminal, meg_progress_show redraws the line in place, at most ten times a second.
 * Otherwise, meg_progress_show prints an info message at most every interval_s seconds, and none if interval_s is 0.
 * If the previous output is too recent, meg_progress_show returns immediately, so callers need not limit the rate of
 * calls.  meg_progress_end leaves the last line on the terminal and begins a new line.
 * With -q, and on ranks other than 0, nothing is shown.  A log message clears the progress line; the next redraw is
 * below the message.  At most one progress line may be in use, by one thread at a time.
 */
struct meg_progress {
    double interval_s, next_s;
    bool is_tty, is_drawn;
};
void meg_progress_init(struct meg_progress *p, double interval_s);
void meg_progress_show(struct meg_progress *p, const char *fmt, ...) MEG_PRINTF(2, 3);
void meg_progress_end(struct meg_progress *p);
