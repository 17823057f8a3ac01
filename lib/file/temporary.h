/*
 * temporary.h - names of files and folders that are being written: PATH.tmp.PID.HOST, beside PATH.
 * The name says whose it is, so that the next run can remove what a killed process left.
 */
#ifndef MEG_FILE_TEMPORARY_H
#define MEG_FILE_TEMPORARY_H

#include <stddef.h>

#include "base/decls.h"
#include "base/err.h"

MEG_BEGIN_DECLS

/* The name of this host, with characters that file names and messages can hold. */
void meg_host_name(char *out, size_t size);

/* Behind a name: the list that commit.h writes.  Behind a temporary name: what it keeps of the old file. */
#define MEG_COMMIT_JOURNAL ".commit"
#define MEG_TEMPORARY_BACKUP ".old"

/* The i-th temporary name for path, counted from 0, malloc'ed: i > 0 where the name before it is taken. */
char *meg_temporary_name(const char *path, int i);

/* Create a folder under a temporary name for path; *out is malloc'ed. */
int meg_temporary_dir(char **out, const char *path, struct meg_err *e);

/* Remove the temporary files and folders for path, and for its list, whose process on this host is gone. */
void meg_temporary_remove_stale(const char *path);

/*
 * meg_temporary_register - have path unlinked when SIGHUP, SIGINT or SIGTERM ends the process, where the
 * process does nothing else about them.  Returns what meg_temporary_unregister takes; 0, which it ignores,
 * where the 32 places are taken.
 */
int meg_temporary_register(const char *path);
/* Unlink them all, as a signal handler may do that ends the process. */
void meg_temporary_unlink_all(void);
void meg_temporary_unregister(int made);

/* Unlink them all and end by _exit(2), for a thread or a signal handler that must not run exit handlers. */
void meg_temporary_exit(int status) MEG_NORETURN;

MEG_END_DECLS

#endif
