/*
 * commit.h - atomic replacement of several files, or of a directory, with journals.  Even if the process is killed, a
 * program that reads the journals finds either all old files or all new files.
 *
 * The new files are completed under temporary names.  A journal FILE.commit is written for each FILE of the set.  Each
 * journal contains the final and the temporary names of all files in the set.  The journal of the first file is written
 * last and is the commit record.  Then the files are renamed, and the journals are removed.
 * A reader (meg_mmap_open, meg_read_file, meg_commit_resolve) looks for the journal of its file.  If the set is
 * committed and the file still has its temporary name, the reader opens the file under that name.
 * The next writer of a file calls meg_file_create or meg_commit_recover.  If the set is committed, these functions
 * complete the renames.  Otherwise, they remove the journal of that file.
 *
 * Programs that do not read journals may find files missing while a set is renamed.  On a file system with hard links,
 * the old files are removed before the first rename, so such a program does not find an old file together with a new
 * file.  The file that such a program opens first should be the last file of the set.
 *
 * All files of a set are in one directory.  Writers of the same files exclude each other by a lock (lock.h).
 *
 * A journal is followed only if it belongs to the effective user or to root.  It is valid only if it is a regular file
 * of at most 1 MiB, names PATH, and contains only members whose temporary names are NAME.tmp.PID.HOST (temporary.h).
 * A directory is a set of one member.  It is replaced by two renames, and is complete whenever it has its final name.
 */
#pragma once
#include <stdbool.h>
#include <sys/stat.h>
#include "base/err.h"
#include "file/file.h"

/*
 * meg_commit_files - fsync n files that are being written, and rename the files to their final names
 * On success, each struct becomes { 0 }.  After a failure, the caller calls meg_file_abandon for each file.  The old
 * files are unchanged, with two exceptions:
 *   - If only the last fsync fails, the new files have replaced the old files.
 *   - If a rename fails and the old files cannot be restored, some or all new files keep their temporary names.  meg's
 *     programs read these files under the temporary names.  The message contains one of the names.
 */
int meg_commit_files(struct meg_file *const file[], int n, struct meg_err *e);

/*
 * Rename the complete directory TMP to DIR, in the same parent.  Returns MEG_EIO, and leaves both unchanged, if DIR
 * exists and is not empty.
 */
int meg_commit_new_dir(const char *tmp, const char *dir, struct meg_err *e);

/*
 * A check of the old directory before it is removed.  The old directory is now called `old`; `dir` is its name for
 * messages.  Returns an error code if the old directory must be kept.
 */
typedef int meg_commit_check(const char *old, const char *dir, struct meg_err *e);

/*
 * meg_commit_dir - rename the complete directory TMP to DIR, in the same parent; replace and remove an existing DIR
 *   check  checks the old directory after its name was changed, so that no process can write to it by that name; NULL:
 *          remove it without a check
 * Uses RENAME_EXCHANGE, or a journal on file systems without it (NFS).  After a failure, DIR is unchanged and TMP still
 * exists, with two exceptions.  If only the last fsync fails, TMP has replaced DIR.  If a rename fails and the old
 * directory cannot be restored, the journal remains, and meg's programs read TMP as DIR.
 */
int meg_commit_dir(const char *tmp, const char *dir, meg_commit_check *check, struct meg_err *e);

/*
 * Return the name of the file that contains the data of path: path itself or, after an interrupted commit, its
 * temporary name.  The caller frees the result.  A journal of another user is ignored with a warning.
 */
char *meg_commit_resolve(const char *path);

/* Call stat(2) on meg_commit_resolve(path). */
int meg_commit_stat(const char *path, struct stat *st);

/* Return whether an interrupted commit of path can be completed by meg_commit_recover. */
bool meg_commit_is_pending(const char *path);

/*
 * Complete or undo an interrupted commit of path.  Does nothing if there is none.  Removes a journal of another user
 * without following it.  Returns MEG_EIO if PATH.commit is not a journal, if it is a journal of another user and cannot
 * be removed, or if a file cannot be renamed.
 */
int meg_commit_recover(const char *path, struct meg_err *e);
