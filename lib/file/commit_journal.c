/* commit_journal.c - commit journals: their text, and the files that they name. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/log.h"
#include "base/mem.h"
#include "file/commit_internal.h"
#include "file/file.h"
#include "file/temporary.h"

static char *concatenate(const char *a, const char *b)
{
    struct meg_str s = { 0 };

    meg_str_printf(&s, "%s%s", a, b);
    return s.s;
}

char *meg_commit_journal_path(const char *path)
{
    return concatenate(path, MEG_COMMIT_JOURNAL);
}

char *meg_commit_backup_path(const struct meg_commit_member *m)
{
    return concatenate(m->tmp, MEG_TEMPORARY_BACKUP);
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash ? slash + 1 : path;
}

/* Append the text of a journal: a header, and a line "name<tab>temporary name" for each member. */
static void format_journal(const struct meg_commit_set *s, struct meg_str *out)
{
    meg_str_printf(out, "meg-commit 1 %s\n", base_name(s->v[0].tmp));
    for (int i = 0; i < s->n; i++)
        meg_str_printf(out, "%s\t%s\n", base_name(s->v[i].path), base_name(s->v[i].tmp));
}

void meg_commit_set_free(struct meg_commit_set *s)
{
    for (int i = 0; i < s->n; i++) {
        free(s->v[i].path);
        free(s->v[i].tmp);
    }
    free(s->v);
    memset(s, 0, sizeof *s);
}

void meg_commit_set_add(struct meg_commit_set *s, char *path, char *tmp)
{
    s->v = meg_realloc_array(s->v, (size_t)s->n + 1, sizeof *s->v);
    s->v[s->n++] = (struct meg_commit_member){ .path = path, .tmp = tmp };
}

/*
 * Return whether this process follows a journal, or renames a file, of this owner.  Other users can create both in a
 * sticky directory such as /tmp, in which they cannot rename the files of this user.
 */
static bool is_trusted_owner(uid_t owner)
{
    return owner == 0 || owner == geteuid();
}

bool meg_commit_has_tmp(const struct meg_commit_member *m)
{
    struct stat st;

    return lstat(m->tmp, &st) == 0 && is_trusted_owner(st.st_uid);
}

enum { MAX_JOURNAL = 1 << 20 }; /* bytes */

/* Append the content of a journal to text. */
static enum meg_commit_journal read_text(struct meg_str *text, const char *journal)
{
    struct stat st;

    if (lstat(journal, &st) < 0)
        return MEG_COMMIT_NO_JOURNAL;
    if (is_trusted_owner(st.st_uid) && meg_read_small(journal, MAX_JOURNAL, text, &st, NULL) < 0)
        return MEG_COMMIT_NOT_A_JOURNAL;
    if (!is_trusted_owner(st.st_uid))
        return MEG_COMMIT_OTHER_OWNER;
    return strlen(text->s) == text->n ? MEG_COMMIT_VALID : MEG_COMMIT_NOT_A_JOURNAL;
}

/* Add the member of a line "name<tab>temporary name", in the directory of path.  Return whether the line is valid. */
static bool parse_line(struct meg_commit_set *s, char *line, const char *path)
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
    meg_commit_set_add(s, name.s, tmp.s);
    return true;
}

static struct meg_commit_member *find_member(const struct meg_commit_set *s, const char *path)
{
    for (int i = 0; i < s->n; i++)
        if (strcmp(s->v[i].path, path) == 0)
            return &s->v[i];
    return NULL;
}

/* Read the journal of path into text and s.  The set is empty unless MEG_COMMIT_VALID is returned. */
static enum meg_commit_journal read_journal(struct meg_commit_set *s, struct meg_str *text, const char *path)
{
    char *journal = meg_commit_journal_path(path), *copy, *line, *rest = NULL;
    enum meg_commit_journal found = read_text(text, journal);
    struct meg_str expected = { 0 };

    free(journal);
    if (found != MEG_COMMIT_VALID)
        return found;
    copy = meg_strdup(text->s);
    strtok_r(copy, "\n", &rest); /* the header, which the comparison below checks */
    while ((line = strtok_r(NULL, "\n", &rest)) && found == MEG_COMMIT_VALID)
        found = parse_line(s, line, path) ? MEG_COMMIT_VALID : MEG_COMMIT_NOT_A_JOURNAL;
    if (found == MEG_COMMIT_VALID && s->n > 0)
        format_journal(s, &expected);
    if (!expected.s || strcmp(expected.s, text->s) != 0 || !find_member(s, path)) {
        meg_commit_set_free(s);
        found = MEG_COMMIT_NOT_A_JOURNAL;
    }
    meg_str_free(&expected);
    free(copy);
    return found;
}

enum meg_commit_journal meg_commit_read(struct meg_commit_set *s, bool *is_committed, const char *path)
{
    struct meg_str text = { 0 }, first = { 0 };
    struct meg_commit_set first_set = { 0 };
    const enum meg_commit_journal found = read_journal(s, &text, path);

    *is_committed = found == MEG_COMMIT_VALID && read_journal(&first_set, &first, s->v[0].path) == MEG_COMMIT_VALID &&
                    strcmp(text.s, first.s) == 0;
    meg_commit_set_free(&first_set);
    meg_str_free(&text);
    meg_str_free(&first);
    return found;
}

bool meg_commit_is_pending(const char *path)
{
    struct meg_commit_set s = { 0 };
    bool is_committed;

    meg_commit_read(&s, &is_committed, path);
    meg_commit_set_free(&s);
    return is_committed;
}

/*
 * Return the member of path whose temporary name is to be read.  A set of one member is a directory, which is complete
 * if it has its final name.
 */
static const struct meg_commit_member *find_renamable(const struct meg_commit_set *s, const char *path)
{
    const struct meg_commit_member *m = find_member(s, path);

    return m && meg_commit_has_tmp(m) && (s->n > 1 || access(path, F_OK) < 0) ? m : NULL;
}

char *meg_commit_resolve(const char *path)
{
    struct meg_commit_set s = { 0 };
    char *found = NULL;
    bool is_committed;
    const enum meg_commit_journal journal = meg_commit_read(&s, &is_committed, path);
    const struct meg_commit_member *m = is_committed ? find_renamable(&s, path) : NULL;

    if (journal == MEG_COMMIT_OTHER_OWNER)
        meg_warn("%s" MEG_COMMIT_JOURNAL ": this commit journal of another user is ignored; if %s is incomplete, run "
                 "the interrupted command again",
                 path, path);
    if (m) {
        found = meg_strdup(m->tmp);
        meg_info("%s: reading %s, which an interrupted command completed but did not rename", path, found);
    }
    meg_commit_set_free(&s);
    return found ? found : meg_strdup(path);
}

int meg_commit_stat(const char *path, struct stat *st)
{
    char *resolved = meg_commit_resolve(path);
    int r = stat(resolved, st);

    free(resolved);
    return r;
}

static int write_journal(const struct meg_commit_member *m, const struct meg_str *text, struct meg_err *e)
{
    char *journal = meg_commit_journal_path(m->path);
    int r = meg_write_file(journal, text->s, text->n, e);

    if (r < 0)
        unlink(journal);
    free(journal);
    return r;
}

int meg_commit_remove_journal(const struct meg_commit_member *m, struct meg_err *e)
{
    char *journal = meg_commit_journal_path(m->path);
    int r = unlink(journal) == 0 || errno == ENOENT
                ? 0
                : meg_fail_errno(e, "%s: cannot remove this commit journal", journal);

    free(journal);
    return r;
}

int meg_commit_write_journals(const struct meg_commit_set *s, struct meg_err *e)
{
    struct meg_str text = { 0 };
    int r = 0;

    format_journal(s, &text);
    for (int i = s->n; r == 0 && i-- > 0;)
        r = write_journal(&s->v[i], &text, e);
    for (int i = 0; r < 0 && i < s->n; i++)
        meg_commit_remove_journal(&s->v[i], NULL);
    meg_str_free(&text);
    return r;
}

void meg_commit_remove_journals(const struct meg_commit_set *s)
{
    for (int i = s->n; i-- > 0;)
        meg_commit_remove_journal(&s->v[i], NULL);
}
