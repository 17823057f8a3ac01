/*
 * lock.h - lock files, which exclude concurrent writers and name their holder.
 *
 * A complete lock file is linked to its name by link(2), so that it appears atomically, also on NFS; on a file system
 * without hard links it is created and then written.  It contains the program, host, process id and start time of its
 * holder.  The lock of a dead process is taken over on the same host, and by a requeued Slurm job on any host.  Whether
 * a process on another host or in another container is alive is unknown: then the error names the holder, and the user
 * decides.
 */
#ifndef MEG_FILE_LOCK_H
#define MEG_FILE_LOCK_H

#include "base/decls.h"
#include "base/err.h"

MEG_BEGIN_DECLS

/* { 0 } is a lock that is not held. */
struct meg_lock {
    int slot; /* 1 + index in the table of this process, or 0 */
};

/*
 * meg_lock_acquire - create the lock file PATH in an existing directory
 *   output  name in messages of what the lock protects
 * MEG_EIO with the holder if a running process holds the lock, or if PATH cannot be created.  Locks are released when
 * the process exits, and when SIGHUP, SIGINT or SIGTERM end it.
 */
int meg_lock_acquire(struct meg_lock *l, const char *path, const char *output, struct meg_err *e);

/* Name of the lock file of a directory. */
#define MEG_LOCK_DIR_FILE ".meg-lock"

/*
 * Create DIR if it does not exist, and acquire DIR/.meg-lock.  Releasing the lock removes a directory that this call
 * created if it is empty.
 */
int meg_lock_dir(struct meg_lock *l, const char *dir, struct meg_err *e);

/* Check that this process still holds the lock; MEG_EIO if its file was removed or replaced. */
int meg_lock_check(const struct meg_lock *l, struct meg_err *e);

/* Remove the lock file, unless another process owns it now.  Has no effect on { 0 }. */
void meg_lock_release(struct meg_lock *l);

MEG_END_DECLS

#endif
