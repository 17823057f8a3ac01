/*
 * temporary.h - names of files and directories that are being written: PATH.tmp.PID.HOST.  The name identifies the
 * process that writes the file, so that the next run can remove the files of a killed process.
 */
#ifndef MEG_FILE_TEMPORARY_H
#define MEG_FILE_TEMPORARY_H

#include <stddef.h>

#include "base/decls.h"
#include "base/err.h"

MEG_BEGIN_DECLS

/* The name of this host; characters other than letters, digits, -, . and _ are replaced by _. */
void meg_host_name(char *out, size_t size);

/* Suffix of a journal of commit.h, and suffix of a temporary name for the backup of the old file. */
#define MEG_COMMIT_JOURNAL ".commit"
#define MEG_TEMPORARY_BACKUP ".old"

/* The i-th temporary name for path, from 0; i > 0 is used if the previous name exists.  malloc'ed. */
char *meg_temporary_name(const char *path, int i);

/* Create a directory under a temporary name for path; *out is malloc'ed. */
int meg_temporary_dir(char **out, const char *path, struct meg_err *e);

/* Remove the temporary files and directories for path and its journal whose process on this host is dead. */
void meg_temporary_remove_stale(const char *path);

/*
 * meg_temporary_register - unlink path when SIGHUP, SIGINT or SIGTERM end the process, unless it handles these itself
 * Returns the slot for meg_temporary_unregister, or 0, which that ignores, if all 32 slots are used.
 */
int meg_temporary_register(const char *path);
/* Unlink all registered files; async-signal-safe. */
void meg_temporary_unlink_all(void);
void meg_temporary_unregister(int slot);

/* Unlink them and call _exit(2), for threads and signal handlers that must not run exit handlers. */
void meg_temporary_exit(int status) MEG_NORETURN;

MEG_END_DECLS

#endif
