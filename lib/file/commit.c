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

/* Read the journal of path.  Returns false if there is no journal or it is incomplete. */
static bool read_journal(struct set *s, struct meg_str *text, const char *path)
{
    const size_t ndir = (size_t)(base_name(path) - path);
    char *journal = journal_path(path), line[2 * 4096];
    FILE *f = fopen(journal, "re");
    bool is_journal = false;

    free(journal);
    while (f && fgets(line, sizeof line, f)) {
        char *tab = strchr(line, '\t'), *end = strchr(line, '\n');
        struct meg_str a = { 0 }, b = { 0 };

        meg_str_printf(text, "%s", line);
        if (text->n == strlen(line)) {
            is_journal = strncmp(line, "meg-commit 1 ", 13) == 0;
            continue;
        }
        if (!tab || !end || memchr(line, '/', (size_t)(end - line))) {
            is_journal = false;
            break;
        }
        *tab = *end = 0;
        meg_str_printf(&a, "%.*s%s", (int)ndir, path, line);
        meg_str_printf(&b, "%.*s%s", (int)ndir, path, tab + 1);
        add_member(s, a.s, b.s);
    }
    if (f)
        fclose(f);
    return is_journal && s->n > 0;
}

/*
 * Read the journal of path into *s, and return whether the set is committed, that is, whether the first file of the set
 * has the same journal.
 */
static bool read_committed(struct set *s, const char *path)
{
    struct meg_str text = { 0 }, first = { 0 };
    struct set first_set = { 0 };
    const bool is_committed =
        read_journal(s, &text, path) && read_journal(&first_set, &first, s->v[0].path) && strcmp(text.s, first.s) == 0;

    free_set(&first_set);
    meg_str_free(&text);
    meg_str_free(&first);
    return is_committed;
}

char *meg_commit_resolve(const char *path)
{
    struct set s = { 0 };
    char *found = NULL, *journal = journal_path(path);

    if (access(journal, F_OK) == 0 && read_committed(&s, path))
        for (int i = 0; i < s.n && !found; i++)
            if (strcmp(s.v[i].path, path) == 0 && access(s.v[i].tmp, F_OK) == 0)
                found = meg_strdup(s.v[i].tmp);
    if (found)
        meg_info("%s: reading %s, which an interrupted command completed but did not rename", path, found);
    free_set(&s);
    free(journal);
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

/*
 * Replace directory m->path with m->tmp, using two renames.  Between the two, readers that find the journal read the
 * new directory under its temporary name.  If the second rename fails, rename the old directory back.
 */
static int replace_dir(const struct member *m, struct meg_err *e)
{
    const struct set s = { (struct member *)m, 1 };
    char *old = backup_path(m);
    int r;

    if ((r = write_journals(&s, e)) < 0)
        goto out;
    if (rename(m->path, old) < 0) {
        r = meg_fail_errno(e, "%s: rename to %s failed", m->path, old);
        remove_journals(&s);
    } else if (rename(m->tmp, m->path) < 0) {
        r = meg_fail_errno(e, "%s: rename from %s failed", m->path, m->tmp);
        if (rename(old, m->path) == 0)
            remove_journals(&s);
    } else {
        r = fsync_and_clean(&s, e);
    }
out:
    free(old);
    return r;
}

int meg_commit_dir(const char *tmp, const char *dir, struct meg_err *e)
{
    const struct member m = { .path = (char *)dir, .tmp = (char *)tmp };
    int r;

    if (!exists(dir))
        return meg_rename(tmp, dir, e);
    if (renameat2(AT_FDCWD, tmp, AT_FDCWD, dir, RENAME_EXCHANGE) == 0) {
        r = meg_fsync_parent(dir, e);
        meg_remove_tree(tmp, NULL);
        return r;
    }
    if (errno != EINVAL && errno != ENOSYS && errno != EOPNOTSUPP)
        return meg_fail_errno(e, "%s: cannot replace this directory with %s", dir, tmp);
    return replace_dir(&m, e);
}

/* ---- recovery after a killed process ---- */

/*
 * Complete a committed set.  A directory cannot be renamed over one that is not empty, so an existing directory is
 * first renamed to its backup name.
 */
static int roll_forward(const struct set *s, struct meg_err *e)
{
    struct stat st;
    int done, r = 0;

    if (stat(s->v[0].path, &st) == 0 && S_ISDIR(st.st_mode) && exists(s->v[0].tmp)) {
        char *old = backup_path(&s->v[0]);

        r = meg_rename(s->v[0].path, old, e);
        free(old);
    }
    if (r == 0 && (r = rename_all(s, &done, e)) == 0)
        r = fsync_and_clean(s, e);
    return r;
}

int meg_commit_recover(const char *path, struct meg_err *e)
{
    struct set s = { 0 };
    char *journal = journal_path(path);
    int r = 0;

    if (access(journal, F_OK) < 0)
        goto out;
    if (read_committed(&s, path)) {
        meg_info("%s: completing a replacement of files that an interrupted command began", path);
        r = roll_forward(&s, e);
    } else if (s.n > 0) {
        unlink(journal);
    } else {
        r = meg_fail(e, MEG_EIO, "%s: this file has the name of a commit journal but is not one; rename or remove it",
                     journal);
    }
out:
    free_set(&s);
    free(journal);
    return r;
}
