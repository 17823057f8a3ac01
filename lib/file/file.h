/*
 * file.h - map files, read files, and write files atomically.  A new file is written under a temporary name and renamed
 * when it is complete.  Error messages name the file.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include "base/err.h"
#include "base/mem.h"

/*
 * A regular file mapped for reading as p [n].  p is NULL only while no file is open; n may be 0.  file/sigbus.h
 * describes what happens if a page cannot be read later.
 */
struct meg_mmap {
    const unsigned char *p;
    size_t n;
    struct meg_sigbus_range *range;
};
int meg_mmap_open(struct meg_mmap *m, const char *path, struct meg_err *e);
void meg_mmap_close(struct meg_mmap *m);
/*
 * Remove the pages of p [n], a range of m, from the memory of the process, so that a file that is read once does not
 * count as memory in use.  The page that contains the end of the range is kept.  A later access reads the file again.
 * Does nothing if m is not open or does not contain the range.
 */
void meg_mmap_drop(const struct meg_mmap *m, const void *p, size_t n);

/*
 * Append the content of a file or pipe to `out`.  Returns MEG_ENOENT if path does not exist, and MEG_EIO if path cannot
 * be read.
 */
int meg_read_file(const char *path, struct meg_str *out, struct meg_err *e);
/* Call meg_read_file for a text file.  Returns MEG_EFORMAT if the file is in a foreign format (foreign/foreign.h). */
int meg_read_text(const char *path, struct meg_str *out, struct meg_err *e);
/*
 * Append the content of a regular file to `out`.  Use this function for names that were read from a directory or
 * another file, not typed by the user.  Returns MEG_EIO for other file types, as meg_mmap_open does: opening a FIFO
 * would block, and a device may be endless.
 */
int meg_read_regular(const char *path, struct meg_str *out, struct meg_err *e);
/*
 * Append the content of a regular file of at most `max` bytes to `out`, and set *st to its status.  Symbolic links and
 * commit journals are not followed.  Use this function for locks and journals, which other users may have created.
 * Returns MEG_ENOENT if path does not exist, and MEG_EIO for a symbolic link, another file type or a larger file.
 */
int meg_read_small(const char *path, size_t max, struct meg_str *out, struct stat *st, struct meg_err *e);

/*
 * struct meg_file - a file that is written under a temporary name in the directory of PATH (temporary.h), and renamed
 * to PATH when it is complete.  Initialize it with { 0 }.
 *   meg_file_create     creates the temporary file, after completing or undoing an interrupted commit of PATH and
 *                       removing the temporary files of dead processes for PATH; fails if PATH exists and is not a
 *                       regular file
 *   meg_file_write      appends, through a buffer
 *   meg_file_pwrite     writes at a byte offset, unbuffered; any thread may call this function
 *   meg_file_writeback  starts to write earlier data of the file to disk (sync_file_range), which makes meg_file_sync
 *                       faster.  The caller has just written bytes [begin, end).  Any thread may call this function.
 *   meg_file_pread      reads n written bytes at a byte offset; returns MEG_EIO if the file ends before offset + n
 *   meg_file_sync       flushes the buffer and calls fsync
 *   meg_file_close      calls meg_file_sync and closes the file without renaming it
 *   meg_file_detach     resets the struct to { 0 } without removing the temporary file; the caller has renamed or
 *                       removed that file
 *   meg_file_commit     closes the file, renames it to PATH and calls fsync on the directory.  On failure, removes the
 *                       temporary file.  PATH is unchanged after a failure, unless only the last fsync failed.
 *   meg_file_abandon    removes the temporary file; has no effect after a commit and on { 0 }
 * meg_file_pwrite and meg_file_close also work on a file of which the caller has set only fd and path.
 * After a failure of any of these functions, call meg_file_abandon.  If SIGHUP, SIGINT or SIGTERM ends the process by
 * its default action, up to 32 temporary files of the process are removed first (meg_temporary_register).
 */
struct meg_file {
    int fd;
    char *path, *tmp;
    unsigned char *buf;
    size_t nbuf;
    int64_t buf_offset; /* byte offset of buf in the file */
    int cleanup_slot;   /* slot returned by meg_temporary_register */
};
int meg_file_create(struct meg_file *f, const char *path, struct meg_err *e);
int meg_file_write(struct meg_file *f, const void *bytes, size_t n, struct meg_err *e);
int meg_file_pwrite(struct meg_file *f, const void *bytes, size_t n, int64_t offset, struct meg_err *e);
void meg_file_writeback(const struct meg_file *f, int64_t begin, int64_t end);
int meg_file_pread(struct meg_file *f, void *out, size_t n, int64_t offset, struct meg_err *e);
int meg_file_sync(struct meg_file *f, struct meg_err *e);
int meg_file_close(struct meg_file *f, struct meg_err *e);
void meg_file_detach(struct meg_file *f);
int meg_file_commit(struct meg_file *f, struct meg_err *e);
void meg_file_abandon(struct meg_file *f);

/* Write a complete file: create, write and commit. */
int meg_write_file(const char *path, const void *bytes, size_t n, struct meg_err *e);

/* Create a directory and its parents.  An existing directory is not an error. */
int meg_mkdirs(const char *path, struct meg_err *e);
/*
 * Return the name of a directory without symbolic links if it exists, and otherwise without trailing slashes.  The
 * caller frees the result.
 */
char *meg_real_dir(const char *dir);
/* Create the directory that contains path, and its parents. */
int meg_mkdirs_parent(const char *path, struct meg_err *e);
/* Remove a file, or a directory and its contents.  A missing path is not an error. */
int meg_remove_tree(const char *path, struct meg_err *e);
/* Rename a file, and call fsync on the directory of the new name to make the rename durable. */
int meg_rename(const char *from, const char *to, struct meg_err *e);
/*
 * Call fsync on a directory, which makes the creation, renaming and removal of files in it durable.  Does nothing if
 * the file system does not support this.
 */
int meg_fsync_dir(const char *path, struct meg_err *e);
/* Call fsync on the directory that contains path. */
int meg_fsync_parent(const char *path, struct meg_err *e);
