/*
 * commit.h - atomic replacement of several files, or of a directory, with journals: even if the process is killed, a
 * reader of the journals finds either all old files or all new files.
 *
 * The new files are completed under temporary names.  For each FILE of the set, a journal FILE.commit is written, which
 * contains the final and the temporary names of all files in the set.  The journal of the first file is written last
 * and is the commit record.  Then the files are renamed and the journals removed.  A reader (meg_mmap_open,
 * meg_read_file, meg_commit_resolve) that finds a committed journal opens the file under its temporary name as long as
 * that file exists.  The next writer of a file (meg_file_create, meg_commit_recover) completes the set if it is
 * committed; otherwise, the writer removes the journal of that file.
 *
 * Programs that do not read journals may find files missing while a set is renamed.  On a file system with hard links,
 * they never find an old file together with a new one, because the old files are removed before the first rename.  The
 * file that such a program opens first should be the last of the set.
 *
 * All files of a set are in one directory.  Writers of the same files exclude each other by a lock (lock.h).
 */
#ifndef MEG_FILE_COMMIT_H
#define MEG_FILE_COMMIT_H

#include <sys/stat.h>

#include "base/decls.h"
#include "base/err.h"
#include "file/file.h"

MEG_BEGIN_DECLS

/*
 * meg_commit_files - fsync n files that are being written, and rename them to their final names
 * On success, each struct becomes { 0 }.  After a failure, the caller calls meg_file_abandon for each file.  The old
 * files are then unchanged, with two exceptions.  If only the last fsync fails, the new files have replaced the old
 * ones.  If renaming fails and the old files cannot be restored, new files keep their temporary names.  meg's programs
 * read them under these names, and the message contains one of the names.
 */
int meg_commit_files(struct meg_file *const file[], int n, struct meg_err *e);

/*
 * meg_commit_dir - rename the complete directory TMP to DIR, in the same parent; replace and remove an existing DIR
 * Uses RENAME_EXCHANGE, or a journal on file systems without it (NFS).  After a failure, DIR is unchanged and TMP still
 * exists, with two exceptions.  If only the last fsync fails, TMP has replaced DIR.  If a rename fails and the old
 * directory cannot be restored, the journal remains, and meg's programs read TMP as DIR.
 */
int meg_commit_dir(const char *tmp, const char *dir, struct meg_err *e);

/*
 * Return the name of the file that contains the data of path: path itself or, after an interrupted commit, its
 * temporary name.  The caller frees the result.
 */
char *meg_commit_resolve(const char *path);

/* Call stat(2) on meg_commit_resolve(path). */
int meg_commit_stat(const char *path, struct stat *st);

/* Complete or undo an interrupted commit of path.  Does nothing if there is none. */
int meg_commit_recover(const char *path, struct meg_err *e);

MEG_END_DECLS

#endif
