/*
 * lock.h - lock files, which exclude concurrent writers and name their holder.
 *
 * A complete lock file is linked to its name by link(2), so it appears atomically, even on NFS.  On a file system
 * without hard links, the lock file is created first and then written.  A lock file contains the program, host, process
 * id and start time of its holder.
 *
 * A process takes over the lock of a dead process on the same host.  A requeued Slurm job takes over its own lock on
 * any host.  For any other holder on a different host or in a different container, a process cannot determine whether
 * the holder is alive.  The error message names the holder, and the user decides whether to remove the lock file.
 */
#ifndef MEG_FILE_LOCK_H
#define MEG_FILE_LOCK_H

#include "base/decls.h"
#include "base/err.h"

MEG_BEGIN_DECLS

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

/* Name of the lock file of a directory. */
#define MEG_LOCK_DIR_FILE ".meg-lock"

/*
 * Create DIR if it does not exist, and acquire DIR/.meg-lock.  If this call created DIR, releasing the lock removes DIR
 * if it is empty.
 */
int meg_lock_dir(struct meg_lock *l, const char *dir, struct meg_err *e);

/*
 * Check that this process still holds the acquired lock l.  Returns MEG_EIO if the lock file was removed or replaced.
 */
int meg_lock_check(const struct meg_lock *l, struct meg_err *e);

/* Remove the lock file, unless another process owns it now.  Has no effect on { 0 }. */
void meg_lock_release(struct meg_lock *l);

MEG_END_DECLS

#endif
