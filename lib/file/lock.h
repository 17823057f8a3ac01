/*
 * lock.h - one writer at a time: a lock file that names its holder.
 *
 * The file is linked into place with its content, so it exists complete or not at all, on NFS too; where
 * the file system has no hard links it is created and then written.  It says which program holds it, on
 * which host, as which process, started when.  A lock whose process is gone is taken over on the same host,
 * and by the next run of the same Slurm job on any host.  On another host or in another container nobody can
 * know, so the holder is named and the user decides.
 */
#ifndef MEG_FILE_LOCK_H
#define MEG_FILE_LOCK_H

#include "base/decls.h"
#include "base/err.h"

MEG_BEGIN_DECLS

/* Starts as { 0 }, which holds nothing. */
struct meg_lock {
    int i; /* the lock among those of this process, from 1 on */
};

/*
 * meg_lock_acquire - create the lock file PATH, in a directory that exists
 * output: what the lock protects, as messages name it.  MEG_EIO where a living process holds it, with
 * the holder's name, or where PATH cannot be created.  A process that exits, or that SIGHUP, SIGINT or
 * SIGTERM ends, releases what it holds.
 */
int meg_lock_acquire(struct meg_lock *l, const char *path, const char *output, struct meg_err *e);

/* The lock file of a folder in which files are replaced. */
#define MEG_LOCK_DIR_FILE ".meg-lock"

/*
 * Create FOLDER, where it is missing, and take FOLDER/.meg-lock.  The release removes a folder that was made
 * here and stayed empty.
 */
int meg_lock_dir(struct meg_lock *l, const char *folder, struct meg_err *e);

/* Whether the lock is still this process's: somebody may have removed the file. */
int meg_lock_check(const struct meg_lock *l, struct meg_err *e);

/* Remove the lock file, unless it is another's by now; does nothing on { 0 }. */
void meg_lock_release(struct meg_lock *l);

MEG_END_DECLS

#endif
