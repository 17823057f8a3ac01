/*
 * commit.h - replace several files, or a folder, as one: whenever the process is killed, all are old or
 * all are new.
 *
 * The complete new files wait under temporary names.  Beside each FILE a FILE.commit is written, which
 * lists the names of the set and their temporary names; the one beside the first file of the set is
 * written last, and its existence decides.  Then the files are renamed and the lists removed.  A reader
 * (meg_mmap_open, meg_read_file, meg_commit_resolve) that finds a decided list opens the temporary name as long as
 * it exists, and the next writer (meg_file_create, meg_commit_recover) completes what is decided and
 * removes what is not.  Readers that know nothing of this may find files missing, but, where the file system
 * has hard links, never an old one beside a new one: the old ones go first, and the file that they open first
 * should be the last of the set.
 *
 * Files of a set are in one directory.  Writers of the same files exclude each other by a lock (lock.h).
 */
#ifndef MEG_FILE_COMMIT_H
#define MEG_FILE_COMMIT_H

#include <sys/stat.h>

#include "base/decls.h"
#include "base/err.h"
#include "file/file.h"

MEG_BEGIN_DECLS

/*
 * meg_commit_files - fsync n files in the making and give them their names
 * On success each is { 0 }.  On failure the old files are in place and the caller abandons the new ones;
 * only where a second failure prevents that too are the new ones kept, under the names that the message
 * says, where meg's programs read them.
 */
int meg_commit_files(struct meg_file *const file[], int n, struct meg_err *e);

/*
 * meg_commit_dir - give the complete folder TMP, beside FOLDER, that name; an older one is replaced and
 * removed
 * By RENAME_EXCHANGE, or where the file system lacks it (NFS) through a list as above.  On failure the old
 * folder is in place and TMP is still there.
 */
int meg_commit_dir(const char *tmp, const char *folder, struct meg_err *e);

/* Where the content of path is: path itself or, when a commit was interrupted, a temporary name.  malloc'ed. */
char *meg_commit_resolve(const char *path);

/* stat(2) of what meg_commit_resolve says. */
int meg_commit_stat(const char *path, struct stat *st);

/* Complete or undo a commit of path that was interrupted; nothing where there is none. */
int meg_commit_recover(const char *path, struct meg_err *e);

MEG_END_DECLS

#endif
