/* lock.c - lock files: acquisition by link(2), and takeover from dead processes under flock(2). */
#define _GNU_SOURCE /* flock, program_invocation_short_name */
#include "file/lock.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/log.h"
#include "base/mem.h"
#include "file/commit.h"
#include "file/file.h"
#include "file/lock_internal.h"
#include "file/temporary.h"

/* ---- acquisition and release ---- */

enum { MAX_TRIES = 100 };

/* The locks that this process holds.  They are released at exit. */
struct entry {
    char *path, *text; /* the lock file and its content; NULL if the entry is free */
    char *output;      /* the protected output, for messages */
    char *new_dir;     /* the directory that meg_lock_dir created, or NULL */
    int cleanup_slot;  /* slot returned by meg_temporary_register */
};
static struct entry *locks;
static int nlocks;

static bool is_ours(const struct entry *h)
{
    struct meg_str text = { 0 };
    struct meg_lock_holder now;
    bool is_equal;

    meg_lock_holder_read(&now, h->path);
    meg_lock_holder_format(&now, &text);
    is_equal = strcmp(text.s, h->text) == 0;
    meg_str_free(&text);
    return is_equal;
}

static void release(struct entry *h)
{
    if (!h->path)
        return;
    if (is_ours(h))
        unlink(h->path);
    if (h->new_dir)
        rmdir(h->new_dir);
    meg_temporary_unregister(h->cleanup_slot);
    free(h->path);
    free(h->text);
    free(h->output);
    free(h->new_dir);
    memset(h, 0, sizeof *h);
}

static void release_all(void)
{
    for (int i = 0; i < nlocks; i++)
        release(&locks[i]);
    free(locks);
    locks = NULL;
    nlocks = 0;
}

/* Add a lock to the table, which takes ownership of text. */
static void add_entry(struct meg_lock *l, const char *path, const char *output, char *text)
{
    int i = 0;

    while (i < nlocks && locks[i].path)
        i++;
    if (i == nlocks) {
        if (nlocks == 0)
            atexit(release_all);
        locks = meg_realloc_array(locks, (size_t)++nlocks, sizeof *locks);
    }
    locks[i] = (struct entry){ .path = meg_strdup(path),
                               .output = meg_strdup(output),
                               .text = text,
                               .cleanup_slot = meg_temporary_register(path) };
    l->slot = i + 1;
}

/*
 * Replace the lock file of a dead process by the lock file of this process.  flock serializes the processes that found
 * the lock file of the dead process.  The first process renames its own lock file to path.  The other processes find
 * that path is no longer the file that they opened, and leave *is_ours unchanged.
 */
static int take_over(const char *tmp, const char *path, const struct meg_lock_holder *self, bool *is_ours,
                     struct meg_err *e)
{
    struct stat opened, named;
    struct meg_lock_holder h;
    const int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    int r = 0;

    if (fd < 0)
        return errno == ENOENT ? 0 : meg_fail_errno(e, "%s: cannot open this lock file of a dead process", path);
    if (flock(fd, LOCK_EX) < 0)
        r = meg_fail(e, MEG_EIO,
                     "%s: flock failed: %s; the process that created this lock file is dead, so remove the file", path,
                     strerror(errno));
    else if (fstat(fd, &opened) == 0 && lstat(path, &named) == 0 && opened.st_ino == named.st_ino &&
             opened.st_dev == named.st_dev && meg_lock_holder_read(&h, path) &&
             meg_lock_holder_is_dead(&h, self, path)) {
        *is_ours = rename(tmp, path) == 0;
        if (*is_ours)
            meg_info("%s: this lock was taken over from %s on host %s, process %s, which is dead", path,
                     h.value[MEG_LOCK_PROGRAM], h.value[MEG_LOCK_HOST], h.value[MEG_LOCK_PID]);
        else
            r = meg_fail_errno(e, "%s: rename from %s failed", path, tmp);
    }
    close(fd);
    return r;
}

/*
 * Create the lock file on a file system without hard links.  The file is empty until it is written; a process that
 * reads the empty file fails to acquire the lock.  If this process is killed before the write, the user must remove the
 * file.
 */
static bool create(const char *path, const struct meg_lock_holder *self)
{
    const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    struct meg_str text = { 0 };
    bool is_written;

    if (fd < 0)
        return false;
    meg_lock_holder_format(self, &text);
    is_written = write(fd, text.s, text.n) == (ssize_t)text.n;
    is_written = close(fd) == 0 && is_written;
    meg_str_free(&text);
    if (!is_written) {
        unlink(path);
        errno = EIO;
    }
    return is_written;
}

/*
 * Link the complete file tmp to path, create path if the file system has no hard links, or take over the lock at path.
 * Removes tmp.
 */
static int acquire(const char *tmp, const char *path, const char *output, const struct meg_lock_holder *self,
                   struct meg_err *e)
{
    bool is_ours = false;
    struct meg_lock_holder h;
    struct stat st;
    int r = 0;

    for (int i = 0; r == 0 && !is_ours && i < MAX_TRIES; i++) {
        /* If link fails because NFS lost the reply of the server, the link exists, so the link count of tmp is 2. */
        is_ours = link(tmp, path) == 0 || (stat(tmp, &st) == 0 && st.st_nlink == 2);
        if (!is_ours && (errno == EPERM || errno == EOPNOTSUPP || errno == ENOSYS))
            is_ours = create(path, self);
        if (is_ours)
            break;
        if (errno != EEXIST)
            r = meg_fail_errno(e, "%s: cannot create this lock file", path);
        else if (meg_lock_holder_read(&h, path))
            r = meg_lock_holder_is_dead(&h, self, path) ? take_over(tmp, path, self, &is_ours, e)
                                                        : meg_lock_holder_fail(path, output, &h, self, e);
    }
    if (r == 0 && !is_ours)
        r = meg_fail(e, MEG_EIO, "%s: other processes created and removed this lock file %d times; try again later",
                     path, MAX_TRIES);
    unlink(tmp);
    return r;
}

/* Write text, the description of this process, to a temporary file, and acquire the lock with this file. */
static int write_lock(const char *path, const char *output, const struct meg_lock_holder *self,
                      const struct meg_str *text, struct meg_err *e)
{
    struct meg_file own = { 0 };
    struct meg_lock_holder h;
    int r;

    if (meg_lock_holder_read(&h, path) && !meg_lock_holder_is_dead(&h, self, path))
        return meg_lock_holder_fail(path, output, &h, self, e);
    if ((r = meg_file_create(&own, path, e)) == 0 && (r = meg_file_write(&own, text->s, text->n, e)) == 0 &&
        (r = meg_file_sync(&own, e)) == 0)
        r = acquire(own.tmp, path, output, self, e);
    meg_file_abandon(&own);
    return r;
}

int meg_lock_acquire(struct meg_lock *l, const char *path, const char *output, struct meg_err *e)
{
    struct meg_str text = { 0 };
    struct meg_lock_holder self;
    int r;

    l->slot = 0;
    meg_lock_holder_self(&self);
    meg_lock_holder_format(&self, &text);
    if ((r = write_lock(path, output, &self, &text, e)) == 0)
        add_entry(l, path, output, text.s);
    else
        meg_str_free(&text);
    return r;
}

int meg_lock_check(const struct meg_lock *l, struct meg_err *e)
{
    struct entry *h = l->slot ? &locks[l->slot - 1] : NULL;
    struct meg_str text = { 0 };
    struct meg_err unused;
    struct meg_lock_holder self;
    int r;

    if (!h || is_ours(h))
        return 0;
    e = e ? e : &unused;
    meg_lock_holder_self(&self);
    meg_str_add(&text, h->text, strlen(h->text));
    if ((r = write_lock(h->path, h->output, &self, &text, e)) == 0) {
        meg_warn("%s: this lock file was removed while this process used it, and has been created again", h->path);
    } else {
        struct meg_err busy = *e;

        meg_fail(e, r, "%.1800s; the lock file of this process was removed", busy.msg);
        meg_temporary_unregister(h->cleanup_slot); /* a signal must not remove the lock of another process */
        h->cleanup_slot = 0;
    }
    meg_str_free(&text);
    return r;
}

void meg_lock_release(struct meg_lock *l)
{
    if (l->slot)
        release(&locks[l->slot - 1]);
    l->slot = 0;
}

/* ---- directories ---- */

static bool is_dir(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static int acquire_content(struct meg_lock *l, const char *dir, struct meg_err *e)
{
    struct meg_str path = { 0 };
    int r;

    meg_str_printf(&path, "%s/" MEG_LOCK_DIR_FILE, dir);
    r = meg_lock_acquire(l, path.s, dir, e);
    meg_str_free(&path);
    return r;
}

/* Acquire DIR.lock for a path without a trailing slash, and complete or undo an interrupted replacement of DIR. */
static int acquire_name(struct meg_lock *l, const char *dir, struct meg_err *e)
{
    struct meg_str path = { 0 };
    int r;

    meg_str_printf(&path, "%s.lock", dir);
    if ((r = meg_mkdirs_parent(dir, e)) == 0 && (r = meg_lock_acquire(l, path.s, dir, e)) == 0 &&
        (r = meg_commit_recover(dir, e)) < 0)
        meg_lock_release(l);
    meg_str_free(&path);
    return r;
}

int meg_lock_dir(struct meg_lock *l, const char *dir, struct meg_err *e)
{
    char *real = meg_real_dir(dir);
    struct meg_lock name = { 0 };
    bool is_new = false;
    int r = 0;

    l->slot = 0;
    if (!is_dir(real) || meg_commit_is_pending(real))
        r = acquire_name(&name, real, e);
    if (r == 0) {
        is_new = !is_dir(real);
        r = meg_mkdirs(dir, e);
    }
    if (r == 0 && (r = acquire_content(l, dir, e)) < 0 && is_new)
        rmdir(dir);
    if (r == 0 && is_new)
        locks[l->slot - 1].new_dir = meg_strdup(dir);
    meg_lock_release(&name);
    free(real);
    return r;
}

bool meg_lock_dir_is_empty(const char *dir)
{
    DIR *d = opendir(dir);
    struct dirent *f;
    bool is_empty = true;

    while (d && (f = readdir(d)))
        is_empty = is_empty && (strcmp(f->d_name, ".") == 0 || strcmp(f->d_name, "..") == 0 ||
                                strncmp(f->d_name, MEG_LOCK_DIR_FILE, strlen(MEG_LOCK_DIR_FILE)) == 0);
    if (d)
        closedir(d);
    return is_empty;
}

int meg_lock_replaced_dir(struct meg_dir_lock *l, const char *dir, struct meg_err *e)
{
    int r = acquire_name(&l->name, dir, e);

    l->content.slot = 0;
    if (r == 0 && is_dir(dir) && (r = acquire_content(&l->content, dir, e)) < 0)
        meg_lock_release(&l->name);
    l->was_empty = meg_lock_dir_is_empty(dir);
    return r;
}

int meg_lock_check_dir(const struct meg_dir_lock *l, struct meg_err *e)
{
    const int r = meg_lock_check(&l->name, e);

    return r < 0 ? r : meg_lock_check(&l->content, e);
}

int meg_lock_commit_dir(struct meg_dir_lock *l, const char *tmp, const char *dir, meg_commit_check *check,
                        struct meg_err *e)
{
    int r = meg_lock_check_dir(l, e);

    if (r < 0)
        return r;
    if (!l->was_empty)
        return meg_commit_dir(tmp, dir, check, e);
    meg_lock_release(&l->content); /* the last file in the directory */
    return meg_commit_new_dir(tmp, dir, e);
}

void meg_lock_release_dir(struct meg_dir_lock *l)
{
    meg_lock_release(&l->content);
    meg_lock_release(&l->name);
}
