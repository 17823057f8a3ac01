/*
 * file.h - whole files: mapped, read, and written so that a file is there whole or not at all.
 * Messages name the file.
 */
#ifndef MEG_FILE_FILE_H
#define MEG_FILE_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "base/decls.h"
#include "base/err.h"
#include "base/mem.h"

MEG_BEGIN_DECLS

/*
 * A regular file mapped for reading; p is NULL only while closed, n may be 0.  Where a byte of it cannot be read later,
 * see file/sigbus.h.
 */
struct meg_mmap {
    const unsigned char *p;
    size_t n;
    struct meg_sigbus_range *entry;
};
int meg_mmap_open(struct meg_mmap *m, const char *path, struct meg_err *e);
void meg_mmap_close(struct meg_mmap *m);

/* Append all of a file (or pipe) that is small enough to hold to out. */
int meg_read_file(const char *path, struct meg_str *out, struct meg_err *e);
/*
 * The same for a file found in a folder, which nobody named: MEG_EIO, at once, for anything but a regular file.
 * A FIFO would wait for a writer, and a device may have no end.  meg_mmap_open refuses these, too.
 */
int meg_read_regular(const char *path, struct meg_str *out, struct meg_err *e);

/*
 * struct meg_file - a file in the making, under a temporary name beside its final one (temporary.h).
 * Starts as { 0 }.
 *   meg_file_create  refuses a PATH that exists and is no regular file
 *   meg_file_write   appends, through a buffer
 *   meg_file_pwrite  writes at offset, at once, and moves nothing; any thread may call it
 *   meg_file_writeback says that bytes from..to are there, and what is a few MiB before them: now and then the
 *                    disk begins to get that, so that meg_file_sync has less to wait for; any thread
 *   meg_file_pread   reads what was written, at offset; MEG_EIO where the file ends before that
 *   meg_file_sync    fsync under the temporary name: after it only the renaming can fail
 *   meg_file_close   the same, and closes the file: commit.h renames it
 *   meg_file_detach  frees all but the temporary file, which the caller has renamed
 *   meg_file_commit  fsync, rename to PATH, fsync the directory.  On failure PATH is what it was
 *                    before, unless only the last fsync failed; the temporary file is gone.
 *   meg_file_abandon removes the temporary file; does nothing after a commit, and on { 0 }
 * After a failure the only thing to do is abandon.  A process that SIGHUP, SIGINT or SIGTERM ends, where it does
 * nothing else about them, removes its temporary files, of 32 at a time.
 */
struct meg_file {
    int fd;
    char *path, *tmp;
    unsigned char *buf;
    size_t nbuf;
    int64_t end; /* where buf belongs in the file */
    int made;    /* its place among those that a signal removes, or 0 */
};
int meg_file_create(struct meg_file *f, const char *path, struct meg_err *e);
int meg_file_write(struct meg_file *f, const void *bytes, size_t n, struct meg_err *e);
int meg_file_pwrite(struct meg_file *f, const void *bytes, size_t n, int64_t offset, struct meg_err *e);
void meg_file_writeback(const struct meg_file *f, int64_t from, int64_t to);
int meg_file_pread(struct meg_file *f, void *out, size_t n, int64_t offset, struct meg_err *e);
int meg_file_sync(struct meg_file *f, struct meg_err *e);
int meg_file_close(struct meg_file *f, struct meg_err *e);
void meg_file_detach(struct meg_file *f);
int meg_file_commit(struct meg_file *f, struct meg_err *e);
void meg_file_abandon(struct meg_file *f);

/* All of the above for bytes that are at hand. */
int meg_write_file(const char *path, const void *bytes, size_t n, struct meg_err *e);

/* Make path and the directories above it; one that exists is fine. */
int meg_mkdirs(const char *path, struct meg_err *e);
/* The same for the directory that path is in. */
int meg_mkdirs_parent(const char *path, struct meg_err *e);
/* Remove a file, or a directory with all in it; what is not there is fine. */
int meg_remove_tree(const char *path, struct meg_err *e);
/* Rename and make it last: fsync the directory of the new name. */
int meg_rename(const char *from, const char *to, struct meg_err *e);
/* fsync a directory: names made, renamed or removed in it last from now on. */
int meg_fsync_dir(const char *path, struct meg_err *e);
/* The same for the directory that path is in. */
int meg_fsync_parent(const char *path, struct meg_err *e);

MEG_END_DECLS

#endif
