/* lock_internal.h - the process that holds a lock, for lock.c. */
#pragma once
#include <stdbool.h>
#include "base/err.h"
#include "base/mem.h"

/* The keys of a lock file, which has one line "key value" for each, in this order. */
enum {
    MEG_LOCK_PROGRAM,
    MEG_LOCK_HOST,
    MEG_LOCK_PID,
    MEG_LOCK_STARTED,
    MEG_LOCK_BOOT,
    MEG_LOCK_PID_NAMESPACE,
    MEG_LOCK_START_TICKS,
    MEG_LOCK_SLURM_JOB,
    MEG_LOCK_SLURM_RESTART,
    MEG_LOCK_NKEYS
};

struct meg_lock_holder {
    char value[MEG_LOCK_NKEYS][128]; /* value of each key; "" if the file lacks it */
};

/* Describe this process. */
void meg_lock_holder_self(struct meg_lock_holder *h);
/* Append the content of the lock file of a process. */
void meg_lock_holder_format(const struct meg_lock_holder *h, struct meg_str *out);
/*
 * Read a lock file.  Returns false if it does not exist.  If it cannot be read or is not a lock file, the values are
 * empty.
 */
bool meg_lock_holder_read(struct meg_lock_holder *h, const char *path);
/*
 * Return true if the holder of the lock file at path is dead, and false if it is alive or this process cannot determine
 * whether it is (lock.h).
 */
bool meg_lock_holder_is_dead(const struct meg_lock_holder *h, const struct meg_lock_holder *self, const char *path);
/* Fail with MEG_EIO and a message that names the holder of the lock file at path, and the protected output. */
int meg_lock_holder_fail(const char *path, const char *output, const struct meg_lock_holder *h,
                         const struct meg_lock_holder *self, struct meg_err *e);
