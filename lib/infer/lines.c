#include "infer/lines.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"

int meg_line_reader_open(struct meg_line_reader *in, const char *path, struct meg_err *e)
{
    *in = (struct meg_line_reader){ .name = path };
    if (strcmp(path, "-") == 0)
        in->name = "standard input";
    else if ((in->fd = open(path, O_RDONLY | O_CLOEXEC)) < 0)
        return meg_fail_errno(e, "%s", path);
    return MEG_OK;
}

void meg_line_reader_close(struct meg_line_reader *in)
{
    if (in->fd > 0)
        close(in->fd);
    free(in->buf);
    *in = (struct meg_line_reader){ 0 };
}

static char *newline(struct meg_line_reader *in)
{
    char *from = in->buf + in->begin;
    char *at =
        in->scanned < in->end - in->begin ? memchr(from + in->scanned, '\n', in->end - in->begin - in->scanned) : NULL;

    in->scanned = at ? (size_t)(at - from) : in->end - in->begin;
    return at;
}

/* One read, behind what is there. */
static int fill(struct meg_line_reader *in, struct meg_err *e)
{
    ssize_t got;

    if (in->begin > 0) {
        memmove(in->buf, in->buf + in->begin, in->end - in->begin);
        in->end -= in->begin;
        in->begin = 0;
    }
    if (in->cap - in->end < 2) { /* a byte to read and the zero behind it */
        in->cap = in->cap ? 2 * in->cap : 65536;
        in->buf = meg_realloc_array(in->buf, in->cap, 1);
    }
    while ((got = read(in->fd, in->buf + in->end, in->cap - in->end - 1)) < 0)
        if (errno == EAGAIN) /* somebody made it non-blocking */
            poll(&(struct pollfd){ .fd = in->fd, .events = POLLIN }, 1, -1);
        else if (errno != EINTR)
            return meg_fail_errno(e, "%s", in->name);
    in->end += (size_t)got;
    in->is_eof = got == 0;
    return MEG_OK;
}

bool meg_line_reader_is_ready(struct meg_line_reader *in)
{
    struct pollfd p = { .fd = in->fd, .events = POLLIN };

    while (!in->is_eof && !newline(in)) {
        if (poll(&p, 1, 0) <= 0)
            return false;
        if (fill(in, NULL) < 0)
            return true; /* meg_line_reader_next fails the same way and says so */
    }
    return true;
}

int meg_line_reader_next(struct meg_line_reader *in, char **text, size_t *n, struct meg_err *e)
{
    char *at;
    int r;

    while (!(at = newline(in)) && !in->is_eof)
        if ((r = fill(in, e)) < 0)
            return r;
    if (!at && in->begin == in->end)
        return 0;
    *text = in->buf + in->begin;
    *n = in->scanned;
    in->begin += *n + (at != NULL);
    if (at && *n > 0 && (*text)[*n - 1] == '\r')
        --*n;
    (*text)[*n] = 0;
    in->scanned = 0;
    in->line++;
    return 1;
}
