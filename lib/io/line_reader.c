/* line_reader.c - read a file or pipe line by line. */
#include "io/line_reader.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/mem.h"
#include "foreign/foreign.h"

void meg_line_reader_init(struct meg_line_reader *in, int fd, const char *name)
{
    *in = (struct meg_line_reader){ .name = name, .fd = fd };
}

int meg_line_reader_open(struct meg_line_reader *in, const char *path, struct meg_err *e)
{
    const bool is_stdin = strcmp(path, "-") == 0;
    const int fd = is_stdin ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);

    meg_line_reader_init(in, fd, is_stdin ? "standard input" : path);
    if (fd < 0)
        return meg_fail_errno(e, "%s", path);
    return is_stdin ? 0 : meg_foreign_check_path(path, MEG_EXPECT_TEXT, e);
}

void meg_line_reader_close(struct meg_line_reader *in)
{
    if (in->fd > STDIN_FILENO)
        close(in->fd);
    free(in->buf);
    *in = (struct meg_line_reader){ 0 };
}

/* Return the first newline in the buffer, or NULL. */
static char *find_newline(struct meg_line_reader *in)
{
    const size_t n = in->end - in->begin;
    char *text = in->buf + in->begin;
    char *newline = in->scanned < n ? memchr(text + in->scanned, '\n', n - in->scanned) : NULL;

    in->scanned = newline ? (size_t)(newline - text) : n;
    return newline;
}

/* Append the bytes of one successful read to the buffer, or set is_eof. */
static int fill(struct meg_line_reader *in, struct meg_err *e)
{
    ssize_t n;

    if (in->begin > 0) {
        memmove(in->buf, in->buf + in->begin, in->end - in->begin);
        in->end -= in->begin;
        in->begin = 0;
    }
    if (in->cap - in->end < 2) { /* reserve one byte for reading, and one for the terminating zero */
        in->cap = in->cap ? 2 * in->cap : 65536;
        in->buf = meg_realloc_array(in->buf, in->cap, 1);
    }
    while ((n = read(in->fd, in->buf + in->end, in->cap - in->end - 1)) < 0)
        if (errno == EAGAIN) /* another process that shares the file description made it non-blocking */
            poll(&(struct pollfd){ .fd = in->fd, .events = POLLIN }, 1, -1);
        else if (errno != EINTR)
            return meg_fail_errno(e, "%s", in->name);
    in->end += (size_t)n;
    in->is_eof = n == 0;
    return 0;
}

bool meg_line_reader_is_ready(struct meg_line_reader *in)
{
    struct pollfd p = { .fd = in->fd, .events = POLLIN };

    while (!in->is_eof && !find_newline(in)) {
        if (poll(&p, 1, 0) <= 0)
            return false;
        if (fill(in, NULL) < 0)
            return true; /* meg_line_reader_next will fail in the same way and return the message */
    }
    return true;
}

int meg_line_reader_next(struct meg_line_reader *in, char **text, size_t *n, struct meg_err *e)
{
    char *newline;
    int r;

    while (!(newline = find_newline(in)) && !in->is_eof)
        if ((r = fill(in, e)) < 0)
            return r;
    if (!newline && in->begin == in->end)
        return 0;
    *text = in->buf + in->begin;
    *n = in->scanned;
    in->has_newline = newline != NULL;
    in->begin += *n + in->has_newline;
    in->offset += (int64_t)*n + in->has_newline;
    if (newline && *n > 0 && (*text)[*n - 1] == '\r')
        --*n;
    (*text)[*n] = 0;
    in->scanned = 0;
    in->line++;
    return 1;
}

int meg_line_reader_explain(int r, const struct meg_line_reader *in, struct meg_err *e)
{
    if (r == MEG_EFORMAT && in->line == 1 && in->fd > STDIN_FILENO)
        meg_foreign_check_path(in->name, MEG_EXPECT_JSON_LINES, e);
    return r;
}
