/* commit.c - atomic replacement of several files, or of a directory, with journals. */
#define _GNU_SOURCE /* renameat2 */
#include "file/commit.h"
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/log.h"
#include "base/mem.h"
#include "file/commit_internal.h"
#include "file/temporary.h"

/* ---- files ---- */

static bool exists(const char *path)
{
    struct stat st;

    return lstat(path, &st) == 0;
}

/* Link the old file to its backup name, if the file system has hard links. */
static void link_backup(struct meg_commit_member *m)
{
    char *old = meg_commit_backup_path(m);

    unlink(old);
    m->has_backup = !exists(m->path) || link(m->path, old) == 0;
    free(old);
}

static void remove_backup(const struct meg_commit_member *m)
{
    char *old = meg_commit_backup_path(m);

    meg_remove_tree(old, NULL);
    free(old);
}

/*
 * Rename the files of a committed set that still have temporary names.  The old files that have backups are removed
 * first.  On failure, *done is the index of the file that could not be renamed.
 */
static int rename_all(const struct meg_commit_set *s, int *done, struct meg_err *e)
{
    for (int i = 0; i < s->n; i++) {
        char *old = meg_commit_backup_path(&s->v[i]);

        if (exists(old) && exists(s->v[i].tmp))
            unlink(s->v[i].path);
        free(old);
    }
    for (*done = 0; *done < s->n; ++*done) {
        const struct meg_commit_member *m = &s->v[*done];

        if (rename(m->tmp, m->path) < 0 && errno != ENOENT)
            return meg_fail_errno(e, "%s: rename from %s failed", m->path, m->tmp);
    }
    return 0;
}

/*
 * Restore the old files after the rename of s->v[done] failed.  Return whether the old files are restored.  Until the
 * commit record is removed, the new files are valid, each under its final or its temporary name.
 */
static bool roll_back(const struct meg_commit_set *s, int done)
{
    bool is_ok = true;

    for (int i = 0; i < done; i++)
        is_ok = is_ok && s->v[i].has_backup;
    for (int i = 0; i < s->n && is_ok; i++) {
        char *old = meg_commit_backup_path(&s->v[i]);

        if (i < done)
            is_ok = rename(s->v[i].path, s->v[i].tmp) == 0;
        if (is_ok && exists(old) && !exists(s->v[i].path))
            is_ok = link(old, s->v[i].path) == 0;
        free(old);
    }
    return is_ok && meg_commit_remove_journal(&s->v[0], NULL) == 0;
}

static int fsync_and_clean(const struct meg_commit_set *s, struct meg_err *e)
{
    int r = meg_fsync_parent(s->v[0].path, e);

    meg_commit_remove_journals(s);
    for (int i = 0; i < s->n; i++)
        remove_backup(&s->v[i]);
    return r;
}

static int replace(struct meg_commit_set *s, bool *is_committed, struct meg_err *e)
{
    int done, r;

    for (int i = 0; i < s->n; i++)
        link_backup(&s->v[i]);
    *is_committed = false;
    if ((r = meg_commit_write_journals(s, e)) < 0)
        goto out;
    *is_committed = true;
    if ((r = rename_all(s, &done, e)) == 0)
        return fsync_and_clean(s, e);
    if (roll_back(s, done)) {
        *is_committed = false;
        meg_commit_remove_journals(s);
    } else if (e) {
        const size_t n = strlen(e->msg);

        snprintf(
            e->msg + n, sizeof e->msg - n,
            "; the new files are complete but still have temporary names such as %s; meg commands find them by their "
            "final names",
            s->v[done].tmp);
    }
out:
    for (int i = 0; i < s->n && !*is_committed; i++)
        remove_backup(&s->v[i]);
    return r;
}

int meg_commit_files(struct meg_file *const file[], int n, struct meg_err *e)
{
    struct meg_commit_set s = { 0 };
    bool is_committed = false;
    int r = 0;

    if (n == 1)
        return meg_file_commit(file[0], e);
    for (int i = 0; i < n && r == 0; i++)
        r = meg_file_close(file[i], e);
    if (r < 0)
        return r;
    for (int i = 0; i < n; i++) {
        meg_commit_set_add(&s, meg_strdup(file[i]->path), meg_strdup(file[i]->tmp));
        meg_temporary_unregister(file[i]->cleanup_slot); /* from here on a signal must not remove the files */
        file[i]->cleanup_slot = 0;
    }
    r = replace(&s, &is_committed, e);
    for (int i = 0; i < n && is_committed; i++)
        meg_file_detach(file[i]);
    meg_commit_set_free(&s);
    return r;
}

/* ---- directories ---- */

int meg_commit_new_dir(const char *tmp, const char *dir, struct meg_err *e)
{
    if (rename(tmp, dir) == 0)
        return meg_fsync_parent(dir, e);
    if (errno == ENOTEMPTY || errno == EEXIST)
        return meg_fail(e, MEG_EIO,
                        "%s: another process wrote to this directory, which was new or empty; the output was not "
                        "written; choose a different directory",
                        dir);
    return meg_fail_errno(e, "%s: rename from %s failed", dir, tmp);
}

/* Check the old directory, which now has the name `old`; the first argument of the check is its present name. */
static int check_old(meg_commit_check *check, const char *old, const char *dir, struct meg_err *e)
{
    return check ? check(old, dir, e) : 0;
}

/*
 * Replace directory m->path with m->tmp, using two renames.  Between the two, readers that find the journal read the
 * new directory under its temporary name.  If the check or the second rename fails, rename the old directory back.
 */
static int replace_dir(const struct meg_commit_member *m, meg_commit_check *check, struct meg_err *e)
{
    const struct meg_commit_set s = { (struct meg_commit_member *)m, 1 };
    char *old = meg_commit_backup_path(m);
    int r;

    if ((r = meg_commit_write_journals(&s, e)) < 0)
        goto out;
    if (rename(m->path, old) < 0) {
        r = meg_fail_errno(e, "%s: rename to %s failed", m->path, old);
        meg_commit_remove_journals(&s);
    } else if ((r = check_old(check, old, m->path, e)) < 0 || (r = meg_commit_new_dir(m->tmp, m->path, e)) < 0) {
        if (rename(old, m->path) == 0) /* unless another process has created the directory */
            meg_commit_remove_journals(&s);
    } else {
        r = fsync_and_clean(&s, e);
    }
out:
    free(old);
    return r;
}

/*
 * Check the old directory, which has been exchanged with DIR and is now TMP, and remove it.  If the check fails,
 * exchange the two again.
 */
static int check_exchanged(const char *tmp, const char *dir, meg_commit_check *check, struct meg_err *e)
{
    int r = check_old(check, tmp, dir, e);

    if (r < 0) {
        renameat2(AT_FDCWD, tmp, AT_FDCWD, dir, RENAME_EXCHANGE);
        return r;
    }
    r = meg_fsync_parent(dir, e);
    meg_remove_tree(tmp, NULL);
    return r;
}

int meg_commit_dir(const char *tmp, const char *dir, meg_commit_check *check, struct meg_err *e)
{
    const struct meg_commit_member m = { .path = (char *)dir, .tmp = (char *)tmp };

    if (!exists(dir))
        return meg_commit_new_dir(tmp, dir, e);
    if (renameat2(AT_FDCWD, tmp, AT_FDCWD, dir, RENAME_EXCHANGE) == 0)
        return check_exchanged(tmp, dir, check, e);
    if (errno != EINVAL && errno != ENOSYS && errno != EOPNOTSUPP)
        return meg_fail_errno(e, "%s: cannot replace this directory with %s", dir, tmp);
    return replace_dir(&m, check, e);
}

/* ---- recovery after a killed process ---- */

/* Fail if a temporary file of a committed set belongs to another user, who may have created it after the commit. */
static int check_owners(const struct meg_commit_set *s, struct meg_err *e)
{
    for (int i = 0; i < s->n; i++)
        if (exists(s->v[i].tmp) && !meg_commit_has_tmp(&s->v[i]))
            return meg_fail(e, MEG_EIO,
                            "%s: this temporary file belongs to another user, so it is not renamed to %s; remove it",
                            s->v[i].tmp, s->v[i].path);
    return 0;
}

/*
 * Complete the replacement of a directory.  If it has its final name, the replacement has not begun or is complete, so
 * only the journal and the backup of the old directory remain.  Otherwise, rename the new directory or, without one,
 * the old one.
 */
static int recover_dir(const struct meg_commit_set *s, struct meg_err *e)
{
    const struct meg_commit_member *m = s->v;
    char *old = meg_commit_backup_path(m);
    int r = 0;

    if (!exists(m->path) && exists(m->tmp))
        r = meg_rename(m->tmp, m->path, e);
    else if (!exists(m->path) && exists(old))
        r = meg_rename(old, m->path, e);
    free(old);
    return r < 0 ? r : fsync_and_clean(s, e);
}

static int recover(const struct meg_commit_set *s, const char *path, struct meg_err *e)
{
    int done, r;

    meg_info("%s: completing a replacement of files that an interrupted command began", path);
    if ((r = check_owners(s, e)) < 0)
        return r;
    if (s->n == 1)
        return recover_dir(s, e);
    return (r = rename_all(s, &done, e)) < 0 ? r : fsync_and_clean(s, e);
}

int meg_commit_recover(const char *path, struct meg_err *e)
{
    struct meg_commit_set s = { 0 };
    char *journal = meg_commit_journal_path(path);
    bool is_committed;
    int r = 0;

    switch (meg_commit_read(&s, &is_committed, path)) {
    case MEG_COMMIT_NO_JOURNAL: break;
    case MEG_COMMIT_VALID:
        if (is_committed)
            r = recover(&s, path, e);
        else
            unlink(journal);
        break;
    case MEG_COMMIT_OTHER_OWNER:
        if (unlink(journal) == 0)
            meg_warn("%s: removed this commit journal of another user, because this command replaces %s", journal,
                     path);
        else
            r = meg_fail(e, MEG_EIO,
                         "%s: this commit journal belongs to another user, and cannot be removed: %s; remove it, or "
                         "choose a different output",
                         journal, strerror(errno));
        break;
    case MEG_COMMIT_NOT_A_JOURNAL:
        r = meg_fail(e, MEG_EIO, "%s: this file has the name of a commit journal but is not one; rename or remove it",
                     journal);
        break;
    }
    meg_commit_set_free(&s);
    free(journal);
    return r;
}
