/* file.c - map files, read files, and write files atomically. */
#define _GNU_SOURCE /* nftw, sync_file_range */
#include "file/file.h"
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "file/commit.h"
#include "file/sigbus.h"
#include "file/temporary.h"
#include "foreign/foreign.h"

#define BUF_BYTES ((size_t)1 << 20)

/* Open path for reading.  If path is committed but not yet renamed, open its temporary name. */
static int open_committed(const char *path, int flags)
{
    char *resolved = meg_commit_resolve(path);
    int fd = open(resolved, O_RDONLY | O_CLOEXEC | flags);

    if (fd < 0 && errno == ENOENT && strcmp(resolved, path) != 0) /* the file was renamed in between */
        fd = open(path, O_RDONLY | O_CLOEXEC | flags);
    free(resolved);
    return fd;
}

/* Open a regular file, without blocking on a FIFO.  Returns the descriptor or an error code. */
static int open_regular(struct stat *st, const char *path, struct meg_err *e)
{
    int fd = open_committed(path, O_NONBLOCK), r;

    if (fd < 0)
        return meg_fail_errno(e, "%s", path);
    if (fstat(fd, st) < 0)
        r = meg_fail_errno(e, "%s", path);
    else
        r = meg_foreign_check_mode(path, st->st_mode, false, e);
    if (r < 0)
        close(fd);
    return r < 0 ? r : fd;
}

int meg_mmap_open(struct meg_mmap *m, const char *path, struct meg_err *e)
{
    struct stat st;
    void *p = NULL;
    int r = 0;
    int fd = open_regular(&st, path, e);

    m->p = NULL;
    m->n = 0;
    if (fd < 0)
        return fd;
    /* map one byte more, which is never read, because a mapping of 0 bytes is invalid */
    p = mmap(NULL, (size_t)st.st_size + 1, PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED) {
        r = meg_fail_errno(e, "%s: mmap failed", path);
        goto out;
    }
    m->p = (const unsigned char *)p;
    m->n = (size_t)st.st_size;
    m->range = meg_sigbus_register(p, m->n, path);
    if ((r = meg_foreign_check(path, m->p, m->n, MEG_EXPECT_FILE, e)) < 0)
        meg_mmap_close(m);
out:
    close(fd);
    return r;
}

void meg_mmap_close(struct meg_mmap *m)
{
    if (!m || !m->p)
        return;
    meg_sigbus_unregister(m->range);
    munmap((void *)m->p, m->n + 1);
    memset(m, 0, sizeof *m);
}

void meg_mmap_drop(const struct meg_mmap *m, const void *p, size_t n)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), map = (uintptr_t)m->p, at = (uintptr_t)p;
    const uintptr_t begin = at / page * page, end = (at + n) / page * page;

    if (map && at >= map && at - map <= m->n && n <= m->n - (at - map) && begin < end)
        madvise((void *)begin, end - begin, MADV_DONTNEED);
}

/* Append all bytes of fd to `out`, and close fd. */
static int read_all(int fd, const char *path, struct meg_str *out, struct meg_err *e)
{
    const size_t before = out->n;
    char buf[1 << 16];
    ssize_t n;
    int r = 0;

    meg_str_add(out, "", 0);
    while ((n = read(fd, buf, sizeof buf)) != 0) {
        if (n > 0)
            meg_str_add(out, buf, (size_t)n);
        else if (errno != EINTR) {
            r = meg_fail_errno(e, "%s: read failed", path);
            break;
        }
    }
    close(fd);
    return r < 0 ? r : meg_foreign_check(path, out->s + before, out->n - before, MEG_EXPECT_FILE, e);
}

int meg_read_file(const char *path, struct meg_str *out, struct meg_err *e)
{
    struct stat st;
    int fd = open_committed(path, 0), r;

    if (fd < 0)
        return meg_fail_errno(e, "%s", path);
    if (fstat(fd, &st) == 0 && (r = meg_foreign_check_mode(path, st.st_mode, true, e)) < 0) {
        close(fd);
        return r;
    }
    return read_all(fd, path, out, e);
}

int meg_read_text(const char *path, struct meg_str *out, struct meg_err *e)
{
    const size_t before = out->n;
    const int r = meg_read_file(path, out, e);

    return r < 0 ? r : meg_foreign_check(path, out->s + before, out->n - before, MEG_EXPECT_SETTINGS, e);
}

int meg_read_regular(const char *path, struct meg_str *out, struct meg_err *e)
{
    struct stat st;
    int fd = open_regular(&st, path, e);

    return fd < 0 ? fd : read_all(fd, path, out, e);
}

int meg_read_small(const char *path, size_t max, struct meg_str *out, struct stat *st, struct meg_err *e)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
    int r = 0;

    if (fd < 0)
        return meg_fail_errno(e, "%s", path);
    if (fstat(fd, st) < 0)
        r = meg_fail_errno(e, "%s", path);
    else if (!S_ISREG(st->st_mode))
        r = meg_fail(e, MEG_EIO, "%s: not a regular file", path);
    else if (st->st_size > (off_t)max)
        r = meg_fail(e, MEG_EIO, "%s: size is %" PRId64 " bytes, expected at most %zu", path, (int64_t)st->st_size,
                     max);
    if (r == 0)
        return read_all(fd, path, out, e);
    close(fd);
    return r;
}

/* Call a function on the directory that contains path. */
static int on_parent(int (*function)(const char *dir, struct meg_err *e), const char *path, struct meg_err *e)
{
    const char *slash = strrchr(path, '/');
    char *dir = !slash ? meg_strdup(".") : meg_strndup(path, slash == path ? 1 : (size_t)(slash - path));
    const int r = function(dir, e);

    free(dir);
    return r;
}

int meg_fsync_parent(const char *path, struct meg_err *e)
{
    return on_parent(meg_fsync_dir, path, e);
}

int meg_mkdirs_parent(const char *path, struct meg_err *e)
{
    return on_parent(meg_mkdirs, path, e);
}

int meg_file_create(struct meg_file *f, const char *path, struct meg_err *e)
{
    struct stat st;
    int i = 0, r;

    memset(f, 0, sizeof *f);
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode))
        return meg_fail(e, MEG_EIO, "%s: exists and is not a regular file", path);
    if ((r = meg_commit_recover(path, e)) < 0)
        return r;
    meg_temporary_remove_stale(path);
    do {
        free(f->tmp);
        f->tmp = meg_temporary_name(path, i++);
        f->fd = open(f->tmp, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    } while (f->fd < 0 && errno == EEXIST);
    if (f->fd < 0) {
        int no = errno;

        free(f->tmp);
        f->tmp = NULL;
        return meg_fail(e, MEG_EIO, "%s: cannot create this file: %s", path, strerror(no));
    }
    f->cleanup_slot = meg_temporary_register(f->tmp);
    f->path = meg_strdup(path);
    f->buf = (unsigned char *)meg_new(BUF_BYTES);
    return 0;
}

int meg_file_pwrite(struct meg_file *f, const void *bytes, size_t n, int64_t offset, struct meg_err *e)
{
    const char *p = (const char *)bytes;
    ssize_t k;

    while (n > 0) {
        k = pwrite(f->fd, p, n, (off_t)offset);
        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0)
            return meg_fail_errno(e, "%s: write failed", f->path);
        p += k;
        n -= (size_t)k;
        offset += k;
    }
    return 0;
}

/*
 * Start to write an 8 MiB chunk of the file to disk.  If [begin, end) completes one or more chunks, this is the chunk
 * before the last complete chunk; otherwise, do nothing.  Failures are ignored because meg_file_sync reports them.
 */
void meg_file_writeback(const struct meg_file *f, int64_t begin, int64_t end)
{
    const int64_t chunk = 8 << 20, last = end / chunk;

    if (begin / chunk < last && last >= 2)
        sync_file_range(f->fd, (last - 2) * chunk, chunk, SYNC_FILE_RANGE_WRITE);
}

static int flush(struct meg_file *f, struct meg_err *e)
{
    size_t n = f->nbuf;

    f->nbuf = 0;
    f->buf_offset += (int64_t)n;
    return meg_file_pwrite(f, f->buf, n, f->buf_offset - (int64_t)n, e);
}

int meg_file_write(struct meg_file *f, const void *bytes, size_t n, struct meg_err *e)
{
    int r;

    if (n > BUF_BYTES - f->nbuf && (r = flush(f, e)) < 0)
        return r;
    if (n > BUF_BYTES) {
        f->buf_offset += (int64_t)n;
        return meg_file_pwrite(f, bytes, n, f->buf_offset - (int64_t)n, e);
    }
    if (n)
        memcpy(f->buf + f->nbuf, bytes, n);
    f->nbuf += n;
    return 0;
}

void meg_file_detach(struct meg_file *f)
{
    meg_temporary_unregister(f->cleanup_slot);
    free(f->path);
    free(f->tmp);
    free(f->buf);
    memset(f, 0, sizeof *f);
}

int meg_file_pread(struct meg_file *f, void *out, size_t n, int64_t offset, struct meg_err *e)
{
    char *p = (char *)out;
    ssize_t k;
    int r;

    if (offset + (int64_t)n > f->buf_offset && (r = flush(f, e)) < 0)
        return r;
    while (n > 0) {
        k = pread(f->fd, p, n, (off_t)offset);
        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0)
            return meg_fail_errno(e, "%s: read failed", f->tmp);
        if (k == 0)
            return meg_fail(e, MEG_EIO,
                            "%s: this temporary file now ends at byte %" PRId64
                            ", but more was written to it; another program may have truncated it",
                            f->tmp, offset);
        p += k;
        n -= (size_t)k;
        offset += k;
    }
    return 0;
}

int meg_file_sync(struct meg_file *f, struct meg_err *e)
{
    int r = flush(f, e);

    return r < 0 || fsync(f->fd) == 0 ? r : meg_fail_errno(e, "%s: fsync failed", f->path);
}

int meg_file_close(struct meg_file *f, struct meg_err *e)
{
    int r = meg_file_sync(f, e), fd = f->fd;

    if (r < 0)
        return r;
    f->fd = -1;
    return close(fd) == 0 ? 0 : meg_fail_errno(e, "%s: close failed", f->path);
}

int meg_file_commit(struct meg_file *f, struct meg_err *e)
{
    int r = meg_file_close(f, e);

    if (r == 0 && rename(f->tmp, f->path) < 0)
        r = meg_fail_errno(e, "%s: rename from %s failed", f->path, f->tmp);
    if (r == 0) {
        r = meg_fsync_parent(f->path, e);
        meg_file_detach(f);
    }
    meg_file_abandon(f);
    return r;
}

void meg_file_abandon(struct meg_file *f)
{
    if (!f || !f->tmp)
        return;
    if (f->fd >= 0)
        close(f->fd);
    unlink(f->tmp);
    meg_file_detach(f);
}

int meg_write_file(const char *path, const void *bytes, size_t n, struct meg_err *e)
{
    struct meg_file f;
    int r;

    if ((r = meg_file_create(&f, path, e)) == 0 && (r = meg_file_write(&f, bytes, n, e)) == 0)
        r = meg_file_commit(&f, e);
    meg_file_abandon(&f);
    return r;
}

int meg_mkdirs(const char *path, struct meg_err *e)
{
    char *dir = meg_strdup(path);
    char *p = dir;
    struct stat st;
    int r = 0;

    do {
        char next;

        p += strspn(p, "/");
        p += strcspn(p, "/");
        next = *p;
        *p = 0;
        if (mkdir(dir, 0777) < 0 && errno != EEXIST)
            r = meg_fail_errno(e, "%s: cannot create this directory", dir);
        else if (stat(dir, &st) < 0)
            r = meg_fail_errno(e, "%s", dir);
        else if (!S_ISDIR(st.st_mode))
            r = meg_fail(e, MEG_EIO, "%s: exists and is not a directory", dir);
        *p = next;
    } while (r == 0 && *p);
    free(dir);
    return r;
}

char *meg_real_dir(const char *dir)
{
    char *real = realpath(dir, NULL);

    if (real)
        return real;
    real = meg_strdup(dir);
    for (size_t n = strlen(real); n > 1 && real[n - 1] == '/'; n--)
        real[n - 1] = 0;
    return real;
}

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *base)
{
    (void)st;
    (void)flag;
    (void)base;
    return remove(path);
}

int meg_remove_tree(const char *path, struct meg_err *e)
{
    if (nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS) != 0 && errno != ENOENT)
        return meg_fail_errno(e, "%s: cannot remove this file or directory", path);
    return 0;
}

int meg_rename(const char *from, const char *to, struct meg_err *e)
{
    if (rename(from, to) < 0)
        return meg_fail_errno(e, "%s: rename from %s failed", to, from);
    return meg_fsync_parent(to, e);
}

int meg_fsync_dir(const char *path, struct meg_err *e)
{
    int r = 0;
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (fd < 0)
        return meg_fail_errno(e, "%s", path);
    if (fsync(fd) < 0 && errno != EINVAL) /* EINVAL: the file system does not support fsync of a directory */
        r = meg_fail_errno(e, "%s: fsync failed", path);
    close(fd);
    return r;
}
