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

struct meg_line_reader {
    const char *name; /* for messages: the path, or "standard input" */
    int64_t line;     /* number of the line last given, from 1 */
    int fd;
    bool is_eof;
    char *buf;
    size_t begin, end, cap; /* bytes read and not yet given */
    size_t scanned;         /* of them, bytes known to hold no newline */
};

/* path is borrowed; "-" is standard input. */
int meg_line_reader_open(struct meg_line_reader *in, const char *path, struct meg_err *e);
void meg_line_reader_close(struct meg_line_reader *in);

/* Whether meg_line_reader_next would answer at once. */
bool meg_line_reader_is_ready(struct meg_line_reader *in);

/*
 * meg_line_reader_next - the next line, without its end, \n or \r\n; the last one needs none
 *   text [n]  out  followed by a zero byte; valid until the next call
 * 1 when there is one, 0 at the end, MEG_EIO when reading fails.
 */
int meg_line_reader_next(struct meg_line_reader *in, char **text, size_t *n, struct meg_err *e);

MEG_END_DECLS
#endif
