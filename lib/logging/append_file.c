/* append_file.c - a log file with unbuffered writes, so that a reader sees each record immediately. */
#include "logging/append_file.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>
#include "base/mem.h"

int meg_append_file_open(struct meg_append_file *a, const char *path, int64_t keep, struct meg_err *e)
{
    a->fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (a->fd < 0)
        return meg_fail_errno(e, "%s", path);
    a->path = meg_strdup(path);
    if (keep >= 0 && ftruncate(a->fd, keep) < 0) {
        int r = meg_fail_errno(e, "%s", path);
        meg_append_file_close(a);
        return r;
    }
    return 0;
}

int meg_append_file_write(struct meg_append_file *a, const void *bytes, size_t n, struct meg_err *e)
{
    const char *p = bytes;

    while (n) {
        ssize_t k = write(a->fd, p, n);
        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0)
            return meg_fail_errno(e, "%s", a->path);
        p += k;
        n -= (size_t)k;
    }
    return 0;
}

void meg_append_file_close(struct meg_append_file *a)
{
    if (!a->path)
        return;
    close(a->fd);
    free(a->path);
    a->path = NULL;
}
