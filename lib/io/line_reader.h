/*
 * line_reader.h - read a file or pipe line by line.  A caller that has other work can query whether the next line can
 * be read without blocking.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/err.h"

struct meg_line_reader {
    const char *name; /* name of the input in messages: its path, or "standard input"; borrowed */
    int64_t line;     /* number of the last line returned, from 1 */
    int64_t offset;   /* byte offset of the next line in the input */
    bool has_newline; /* whether the last line returned ended with a newline */
    bool is_eof;
    int fd;
    char *buf;
    size_t begin, end, cap; /* buf[begin, end) is read but not yet returned */
    size_t scanned;         /* number of bytes from begin that are known to contain no newline */
};

/*
 * Open the file at path, which is borrowed; "-" is standard input.  Returns MEG_ENOENT or MEG_EIO on failure, and
 * MEG_EFORMAT if the file is not text but in a known binary format (foreign/foreign.h).
 */
int meg_line_reader_open(struct meg_line_reader *in, const char *path, struct meg_err *e);

/* Initialize a reader of fd, which meg_line_reader_close closes unless it is standard input. */
void meg_line_reader_init(struct meg_line_reader *in, int fd, const char *name);

/* Close the file and free the buffer.  Accepts { 0 } and a reader whose open failed. */
void meg_line_reader_close(struct meg_line_reader *in);

/*
 * Return whether meg_line_reader_next would return without blocking.  Reads input into the buffer until the buffer
 * contains a complete line, or no more input is available.
 */
bool meg_line_reader_is_ready(struct meg_line_reader *in);

/*
 * meg_line_reader_next - read the next line, without its line end \n or \r\n
 * The last line of the input need not have a line end.
 *   text [n]  out  the line, followed by a zero byte; valid until the next call
 * Returns 1, or 0 at the end of the input, or MEG_EIO if reading fails.  The length of lines is not limited.
 */
int meg_line_reader_next(struct meg_line_reader *in, char **text, size_t *n, struct meg_err *e);

/*
 * meg_line_reader_explain - explain why the last line returned is not a JSON line
 *   r  0, or the error of the line, whose message is in *e
 * If r is MEG_EFORMAT and this is the first line of a file in a foreign format (foreign/foreign.h), replaces the
 * message.  Returns r.
 */
int meg_line_reader_explain(int r, const struct meg_line_reader *in, struct meg_err *e);
