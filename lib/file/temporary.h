/*
 * temporary.h - names of files and directories that are being written: PATH.tmp.PID.HOST, or PATH.tmp.PID.HOST.N if
 * that name exists.  PID and HOST identify the process that writes the file.  The next run can therefore remove the
 * files of a killed process.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include "base/decls.h"
#include "base/err.h"

/* Set out to the name of this host, in which characters other than letters, digits, -, . and _ are replaced by _. */
void meg_host_name(char *out, size_t size);

/* PATH.commit is a commit journal (commit.h), and PATH.tmp.PID.HOST.old is the backup of an old file PATH. */
#define MEG_COMMIT_JOURNAL ".commit"
#define MEG_TEMPORARY_BACKUP ".old"

/*
 * Return the temporary name for path with N = i, or without .N if i is 0.  Callers start with i = 0, and increment i
 * while the name exists.  The caller frees the name.
 */
char *meg_temporary_name(const char *path, int i);

/* Return whether name is a temporary name for base, of any process on any host.  Neither contains a directory. */
bool meg_temporary_is_name(const char *name, const char *base);

/*
 * Create a directory under a temporary name for path.  The caller frees *out, the name.  Returns MEG_EIO, with *out
 * NULL, if the directory cannot be created.
 */
int meg_temporary_dir(char **out, const char *path, struct meg_err *e);

/* Remove the temporary files and directories that dead processes on this host created for path and its journal. */
void meg_temporary_remove_stale(const char *path);

/*
 * meg_temporary_register - unlink path when SIGHUP, SIGINT or SIGTERM ends the process
 * A signal that the process handles itself does not unlink path.  Returns the slot for meg_temporary_unregister.
 * Returns 0 if all 32 slots are used or path has 4096 bytes or more; meg_temporary_unregister ignores 0.
 */
int meg_temporary_register(const char *path);
/* Unlink all registered files; async-signal-safe. */
void meg_temporary_unlink_all(void);
void meg_temporary_unregister(int slot);

/* Unlink all registered files and call _exit(2), for threads and signal handlers, which must not run exit handlers. */
void meg_temporary_exit(int status) MEG_NORETURN;
