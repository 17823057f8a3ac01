/*
 * lock.h - lock files, which exclude concurrent writers and name their holder.
 *
 * A complete lock file is linked to its name by link(2), so it appears atomically, even on NFS.  On a file system
 * without hard links, the lock file is created first and then written.  A lock file contains the program, host, process
 * id and start time of its holder.
 *
 * A process takes over the lock of a dead process, if it is certain that the process is dead:
 *   - The process id is unused, or belongs to a process that started at another time.  This requires that the holder
 *     has the same host name, boot and PID namespace.
 *   - The holder is from another boot, and the lock file is on a local disk (ext4, XFS, Btrfs or F2FS), which only one
 *     running kernel can mount.
 *   - This process belongs to a later run of the same Slurm job, which Slurm requeued.
 * In all other cases, the error message names the holder, and the user decides whether to remove the lock file.
 */
#pragma once
#include <stdbool.h>
#include "base/err.h"
#include "file/commit.h"

/* { 0 } is a lock that is not held. */
struct meg_lock {
    int slot; /* 1 + index in the lock table of this process, or 0 */
};

/*
 * meg_lock_acquire - create the lock file PATH in an existing directory
 *   output  name of the protected output, for messages
 * Returns MEG_EIO if PATH cannot be created, or exists and is not a lock file.  Returns MEG_EIO if a process that is
 * not known to be dead holds the lock; the message names that process.
 * Locks are released by exit(3), and when SIGHUP, SIGINT or SIGTERM ends the process (see meg_temporary_register).
 */
int meg_lock_acquire(struct meg_lock *l, const char *path, const char *output, struct meg_err *e);

/*
 * Check that this process still holds the acquired lock l; { 0 } passes.  If the lock file was removed, and no other
 * process has acquired the lock since, acquires it again with a warning.  Returns MEG_EIO if another process holds the
 * lock now; the message names that process.
 */
int meg_lock_check(const struct meg_lock *l, struct meg_err *e);

/* Remove the lock file, unless another process owns it now.  Has no effect on { 0 }. */
void meg_lock_release(struct meg_lock *l);

/*
 * Locks of a directory.  DIR/.meg-lock protects the files in DIR.  DIR.lock, beside DIR, protects the name: a process
 * that creates, replaces or recovers DIR (commit.h) holds it.  A writer of files in DIR therefore holds DIR.lock only
 * while it creates DIR, and a writer that replaces DIR holds both.
 */
#define MEG_LOCK_DIR_FILE ".meg-lock"

/*
 * Acquire DIR/.meg-lock.  Creates DIR if it does not exist, after completing an interrupted replacement of DIR.  If
 * this call created DIR, releasing the lock removes DIR if it is empty.
 */
int meg_lock_dir(struct meg_lock *l, const char *dir, struct meg_err *e);

/* Return whether dir contains no files, except lock files; true if dir cannot be opened. */
bool meg_lock_dir_is_empty(const char *dir);

/*
 * struct meg_dir_lock - locks of a writer that replaces the directory DIR.  { 0 } is a lock that is not held.
 *   meg_lock_replaced_dir  acquires DIR.lock and, if DIR exists, DIR/.meg-lock, and completes an interrupted
 *                          replacement.  DIR is a name as meg_real_dir returns it.
 *   meg_lock_check_dir     calls meg_lock_check for both locks
 *   meg_lock_commit_dir    checks the locks, and renames the complete directory TMP to DIR: by meg_commit_new_dir if
 *                          DIR was missing or empty when it was locked, which fails if another process has written to
 *                          DIR since, and otherwise by meg_commit_dir with `check`
 */
struct meg_dir_lock {
    struct meg_lock name, content; /* content is { 0 } if DIR does not exist */
    bool was_empty;                /* DIR was missing or empty when it was locked */
};
int meg_lock_replaced_dir(struct meg_dir_lock *l, const char *dir, struct meg_err *e);
int meg_lock_check_dir(const struct meg_dir_lock *l, struct meg_err *e);
int meg_lock_commit_dir(struct meg_dir_lock *l, const char *tmp, const char *dir, meg_commit_check *check,
                        struct meg_err *e);
void meg_lock_release_dir(struct meg_dir_lock *l);
