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
#include "file/temporary.h"

/* ---- journals ---- */

/* A file or directory of a set, with its final and its temporary path. */
struct member {
    char *path, *tmp;
    bool has_backup; /* the old file has a link under its backup name, or there is no old file */
};

struct set {
    struct member *v;
    int n;
};

static char *concatenate(const char *a, const char *b)
{
    struct meg_str s = { 0 };

    meg_str_printf(&s, "%s%s", a, b);
    return s.s;
}

static char *journal_path(const char *path)
{
    return concatenate(path, MEG_COMMIT_JOURNAL);
}

static char *backup_path(const struct member *m)
{
    return concatenate(m->tmp, MEG_TEMPORARY_BACKUP);
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash ? slash + 1 : path;
}

/* Append the text of a journal: a header, and a line "name<tab>temporary name" for each member. */
static void format_journal(const struct set *s, struct meg_str *out)
{
    meg_str_printf(out, "meg-commit 1 %s\n", base_name(s->v[0].tmp));
    for (int i = 0; i < s->n; i++)
        meg_str_printf(out, "%s\t%s\n", base_name(s->v[i].path), base_name(s->v[i].tmp));
}

static void free_set(struct set *s)
{
    for (int i = 0; i < s->n; i++) {
        free(s->v[i].path);
        free(s->v[i].tmp);
    }
    free(s->v);
    memset(s, 0, sizeof *s);
}

static void add_member(struct set *s, char *path, char *tmp)
{
    s->v = meg_realloc_array(s->v, (size_t)s->n + 1, sizeof *s->v);
    s->v[s->n++] = (struct member){ .path = path, .tmp = tmp };
}

/*
 * Return whether this process follows a journal, or renames a file, of this owner.  Other users can create both in a
 * sticky directory such as /tmp, in which they cannot rename the files of this user.
 */
static bool is_trusted_owner(uid_t owner)
{
    return owner == 0 || owner == geteuid();
}

/* Return whether the temporary file of a member exists and has a trusted owner. */
static bool has_tmp(const struct member *m)
{
    struct stat st;

    return lstat(m->tmp, &st) == 0 && is_trusted_owner(st.st_uid);
}

enum { MAX_JOURNAL = 1 << 20 }; /* bytes */
enum journal { NO_JOURNAL, OTHER_OWNER, NOT_A_JOURNAL, JOURNAL };

/* Append the content of a journal to text. */
static enum journal read_text(struct meg_str *text, const char *journal)
{
    struct stat st;

    if (lstat(journal, &st) < 0)
        return NO_JOURNAL;
    if (is_trusted_owner(st.st_uid) && meg_read_small(journal, MAX_JOURNAL, text, &st, NULL) < 0)
        return NOT_A_JOURNAL;
    if (!is_trusted_owner(st.st_uid))
        return OTHER_OWNER;
    return strlen(text->s) == text->n ? JOURNAL : NOT_A_JOURNAL;
}

/* Add the member of a line "name<tab>temporary name", in the directory of path.  Return whether the line is valid. */
static bool parse_line(struct set *s, char *line, const char *path)
{
    const int ndir = (int)(base_name(path) - path);
    char *tab = strchr(line, '\t');
    struct meg_str name = { 0 }, tmp = { 0 };

    if (!tab || strchr(line, '/'))
        return false;
    *tab = 0;
    if (!meg_temporary_is_name(tab + 1, line))
        return false;
    meg_str_printf(&name, "%.*s%s", ndir, path, line);
    meg_str_printf(&tmp, "%.*s%s", ndir, path, tab + 1);
    add_member(s, name.s, tmp.s);
    return true;
}

static struct member *find_member(const struct set *s, const char *path)
{
    for (int i = 0; i < s->n; i++)
        if (strcmp(s->v[i].path, path) == 0)
            return &s->v[i];
    return NULL;
}

/* Read the journal of path into text and s.  The set is empty unless JOURNAL is returned. */
static enum journal read_journal(struct set *s, struct meg_str *text, const char *path)
{
    char *journal = journal_path(path), *copy, *line, *rest = NULL;
    enum journal found = read_text(text, journal);
    struct meg_str expected = { 0 };

    free(journal);
    if (found != JOURNAL)
        return found;
    copy = meg_strdup(text->s);
    strtok_r(copy, "\n", &rest); /* the header, which the comparison below checks */
    while ((line = strtok_r(NULL, "\n", &rest)) && found == JOURNAL)
        found = parse_line(s, line, path) ? JOURNAL : NOT_A_JOURNAL;
    if (found == JOURNAL && s->n > 0)
        format_journal(s, &expected);
    if (!expected.s || strcmp(expected.s, text->s) != 0 || !find_member(s, path)) {
        free_set(s);
        found = NOT_A_JOURNAL;
    }
    meg_str_free(&expected);
    free(copy);
    return found;
}

/*
 * Read the journal of path into *s, and set *is_committed to whether the set is committed, that is, whether the first
 * file of the set has the same journal.
 */
static enum journal read_committed(struct set *s, bool *is_committed, const char *path)
{
    struct meg_str text = { 0 }, first = { 0 };
    struct set first_set = { 0 };
    const enum journal found = read_journal(s, &text, path);

    *is_committed =
        found == JOURNAL && read_journal(&first_set, &first, s->v[0].path) == JOURNAL && strcmp(text.s, first.s) == 0;
    free_set(&first_set);
    meg_str_free(&text);
    meg_str_free(&first);
    return found;
}

bool meg_commit_is_pending(const char *path)
{
    struct set s = { 0 };
    bool is_committed;

    read_committed(&s, &is_committed, path);
    free_set(&s);
    return is_committed;
}

/*
 * Return the member of path whose temporary name is to be read.  A set of one member is a directory, which is complete
 * if it has its final name.
 */
static const struct member *find_renamable(const struct set *s, const char *path)
{
    const struct member *m = find_member(s, path);

    return m && has_tmp(m) && (s->n > 1 || access(path, F_OK) < 0) ? m : NULL;
}

char *meg_commit_resolve(const char *path)
{
    struct set s = { 0 };
    char *found = NULL;
    bool is_committed;
    const enum journal journal = read_committed(&s, &is_committed, path);
    const struct member *m = is_committed ? find_renamable(&s, path) : NULL;

    if (journal == OTHER_OWNER)
        meg_warn("%s" MEG_COMMIT_JOURNAL ": this commit journal of another user is ignored; if %s is incomplete, run "
                 "the interrupted command again",
                 path, path);
    if (m) {
        found = meg_strdup(m->tmp);
        meg_info("%s: reading %s, which an interrupted command completed but did not rename", path, found);
    }
    free_set(&s);
    return found ? found : meg_strdup(path);
}

int meg_commit_stat(const char *path, struct stat *st)
{
    char *resolved = meg_commit_resolve(path);
    int r = stat(resolved, st);

    free(resolved);
    return r;
}

static int write_journal(const struct member *m, const struct meg_str *text, struct meg_err *e)
{
    char *journal = journal_path(m->path);
    int r = meg_write_file(journal, text->s, text->n, e);

    if (r < 0)
        unlink(journal);
    free(journal);
    return r;
}

static int remove_journal(const struct member *m, struct meg_err *e)
{
    char *journal = journal_path(m->path);
    int r = unlink(journal) == 0 || errno == ENOENT
                ? 0
                : meg_fail_errno(e, "%s: cannot remove this commit journal", journal);

    free(journal);
    return r;
}

/* Write the journals, the commit record last; on failure, remove all journals. */
static int write_journals(const struct set *s, struct meg_err *e)
{
    struct meg_str text = { 0 };
    int r = 0;

    format_journal(s, &text);
    for (int i = s->n; r == 0 && i-- > 0;)
        r = write_journal(&s->v[i], &text, e);
    for (int i = 0; r < 0 && i < s->n; i++)
        remove_journal(&s->v[i], NULL);
    meg_str_free(&text);
    return r;
}

static void remove_journals(const struct set *s)
{
    for (int i = s->n; i-- > 0;)
        remove_journal(&s->v[i], NULL);
}

/* ---- files ---- */

static bool exists(const char *path)
{
    struct stat st;

    return lstat(path, &st) == 0;
}

/* Link the old file to its backup name, if the file system has hard links. */
static void link_backup(struct member *m)
{
    char *old = backup_path(m);

    unlink(old);
    m->has_backup = !exists(m->path) || link(m->path, old) == 0;
    free(old);
}

static void remove_backup(const struct member *m)
{
    char *old = backup_path(m);

    meg_remove_tree(old, NULL);
    free(old);
}

/*
 * Rename the files of a committed set that still have temporary names.  The old files that have backups are removed
 * first.  On failure, *done is the index of the file that could not be renamed.
 */
static int rename_all(const struct set *s, int *done, struct meg_err *e)
{
    for (int i = 0; i < s->n; i++) {
        char *old = backup_path(&s->v[i]);

        if (exists(old) && exists(s->v[i].tmp))
            unlink(s->v[i].path);
        free(old);
    }
    for (*done = 0; *done < s->n; ++*done) {
        const struct member *m = &s->v[*done];

        if (rename(m->tmp, m->path) < 0 && errno != ENOENT)
            return meg_fail_errno(e, "%s: rename from %s failed", m->path, m->tmp);
    }
    return 0;
}

/*
 * Restore the old files after the rename of s->v[done] failed.  Return whether the old files are restored.  Until the
 * commit record is removed, the new files are valid, each under its final or its temporary name.
 */
static bool roll_back(const struct set *s, int done)
{
    bool is_ok = true;

    for (int i = 0; i < done; i++)
        is_ok = is_ok && s->v[i].has_backup;
    for (int i = 0; i < s->n && is_ok; i++) {
        char *old = backup_path(&s->v[i]);

        if (i < done)
            is_ok = rename(s->v[i].path, s->v[i].tmp) == 0;
        if (is_ok && exists(old) && !exists(s->v[i].path))
            is_ok = link(old, s->v[i].path) == 0;
        free(old);
    }
    return is_ok && remove_journal(&s->v[0], NULL) == 0;
}

static int fsync_and_clean(const struct set *s, struct meg_err *e)
{
    int r = meg_fsync_parent(s->v[0].path, e);

    remove_journals(s);
    for (int i = 0; i < s->n; i++)
        remove_backup(&s->v[i]);
    return r;
}

static int replace(struct set *s, bool *is_committed, struct meg_err *e)
{
    int done, r;

    for (int i = 0; i < s->n; i++)
        link_backup(&s->v[i]);
    *is_committed = false;
    if ((r = write_journals(s, e)) < 0)
        goto out;
    *is_committed = true;
    if ((r = rename_all(s, &done, e)) == 0)
        return fsync_and_clean(s, e);
    if (roll_back(s, done)) {
        *is_committed = false;
        remove_journals(s);
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
    struct set s = { 0 };
    bool is_committed = false;
    int r = 0;

    if (n == 1)
        return meg_file_commit(file[0], e);
    for (int i = 0; i < n && r == 0; i++)
        r = meg_file_close(file[i], e);
    if (r < 0)
        return r;
    for (int i = 0; i < n; i++) {
        add_member(&s, meg_strdup(file[i]->path), meg_strdup(file[i]->tmp));
        meg_temporary_unregister(file[i]->cleanup_slot); /* from here on a signal must not remove the files */
        file[i]->cleanup_slot = 0;
    }
    r = replace(&s, &is_committed, e);
    for (int i = 0; i < n && is_committed; i++)
        meg_file_detach(file[i]);
    free_set(&s);
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

/* Rename the old directory back after an error, unless another process has created DIR. */
static void restore_dir(const char *old, const struct set *s)
{
    if (rename(old, s->v->path) == 0)
        remove_journals(s);
}

/*
 * Replace directory m->path with m->tmp, using two renames.  Between the two, readers that find the journal read the
 * new directory under its temporary name.  If the check or the second rename fails, rename the old directory back.
 */
static int replace_dir(const struct member *m, meg_commit_check *check, struct meg_err *e)
{
    const struct set s = { (struct member *)m, 1 };
    char *old = backup_path(m);
    int r;

    if ((r = write_journals(&s, e)) < 0)
        goto out;
    if (rename(m->path, old) < 0) {
        r = meg_fail_errno(e, "%s: rename to %s failed", m->path, old);
        remove_journals(&s);
    } else if ((r = check_old(check, old, m->path, e)) < 0 || (r = meg_commit_new_dir(m->tmp, m->path, e)) < 0) {
        restore_dir(old, &s);
    } else {
        r = fsync_and_clean(&s, e);
    }
out:
    free(old);
    return r;
}

/*
 * Check the old directory, which has been exchanged with DIR and is now TMP, and remove it.  If the check fails, exchange
 * the two again.
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
    const struct member m = { .path = (char *)dir, .tmp = (char *)tmp };

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
static int check_owners(const struct set *s, struct meg_err *e)
{
    for (int i = 0; i < s->n; i++)
        if (exists(s->v[i].tmp) && !has_tmp(&s->v[i]))
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
static int recover_dir(const struct set *s, struct meg_err *e)
{
    const struct member *m = s->v;
    char *old = backup_path(m);
    int r = 0;

    if (!exists(m->path) && exists(m->tmp))
        r = meg_rename(m->tmp, m->path, e);
    else if (!exists(m->path) && exists(old))
        r = meg_rename(old, m->path, e);
    free(old);
    return r < 0 ? r : fsync_and_clean(s, e);
}

static int recover(const struct set *s, const char *path, struct meg_err *e)
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
    struct set s = { 0 };
    char *journal = journal_path(path);
    bool is_committed;
    int r = 0;

    switch (read_committed(&s, &is_committed, path)) {
    case NO_JOURNAL: break;
    case JOURNAL:
        if (is_committed)
            r = recover(&s, path, e);
        else
            unlink(journal);
        break;
    case OTHER_OWNER:
        if (unlink(journal) == 0)
            meg_warn("%s: removed this commit journal of another user, because this command replaces %s", journal,
                     path);
        else
            r = meg_fail_errno(e,
                               "%s: this commit journal belongs to another user, and cannot be removed; remove it, or "
                               "choose a different output",
                               journal);
        break;
    case NOT_A_JOURNAL:
        r = meg_fail(e, MEG_EIO, "%s: this file has the name of a commit journal but is not one; rename or remove it",
                     journal);
        break;
    }
    free_set(&s);
    free(journal);
    return r;
}
