/*
 * lines.h - lines of a file or pipe, which can also be asked whether one is there yet: a program
 * that has other work (sequences under way) reads on only then, and otherwise waits.
 */
#ifndef MEG_INFER_LINES_H
#define MEG_INFER_LINES_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

MEG_BEGIN_DECLS

struct meg_lines {
    const char *name;            /* for messages: the path, or "standard input" */
    int64_t line;                /* number of the line last given, from 1 */
    int fd;
    bool is_eof;
    char *buf;
    size_t begin, end, cap;      /* bytes read and not yet given */
    size_t scanned;              /* of them, bytes known to hold no newline */
};

/* path is borrowed; "-" is standard input. */
int meg_lines_open(struct meg_lines *in, const char *path, struct meg_err *e);
void meg_lines_close(struct meg_lines *in);

/* Whether meg_lines_next would answer at once. */
bool meg_lines_is_ready(struct meg_lines *in);

/*
 * meg_lines_next - the next line, without its end, \n or \r\n; the last one needs none
 *   text [n]  out  followed by a zero byte; valid until the next call
 * 1 when there is one, 0 at the end, MEG_EIO when reading fails.
 */
int meg_lines_next(struct meg_lines *in, char **text, size_t *n, struct meg_err *e);

MEG_END_DECLS
#endif
