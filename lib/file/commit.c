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

/* ---- lists ---- */

/* A file or folder of a set, by full names. */
struct member {
    char *path, *tmp;
    bool is_kept; /* what was there before has another name, too, or there was nothing */
};

struct set {
    struct member *v;
    int n;
};

static char *join(const char *a, const char *b)
{
    struct meg_str s = { 0 };

    meg_str_printf(&s, "%s%s", a, b);
    return s.s;
}

static char *list_of(const char *path)
{
    return join(path, MEG_COMMIT_JOURNAL);
}

static char *backup_path(const struct member *m)
{
    return join(m->tmp, MEG_TEMPORARY_BACKUP);
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash ? slash + 1 : path;
}

/* A line a member, "name<tab>temporary name". */
static void spell(const struct set *s, struct meg_str *out)
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

/* Read the list beside path; false where there is none, or it is not a complete one of ours. */
static bool read_list(struct set *s, struct meg_str *text, const char *path)
{
    const size_t ndir = (size_t)(base_name(path) - path);
    char *list = list_of(path), line[2 * 4096];
    FILE *f = fopen(list, "re");
    bool is_ours = false;

    free(list);
    while (f && fgets(line, sizeof line, f)) {
        char *tab = strchr(line, '\t'), *end = strchr(line, '\n');
        struct meg_str a = { 0 }, b = { 0 };

        meg_str_printf(text, "%s", line);
        if (text->n == strlen(line)) {
            is_ours = !strncmp(line, "meg-commit 1 ", 13);
            continue;
        }
        if (!tab || !end || memchr(line, '/', (size_t)(end - line))) {
            is_ours = false;
            break;
        }
        *tab = *end = 0;
        meg_str_printf(&a, "%.*s%s", (int)ndir, path, line);
        meg_str_printf(&b, "%.*s%s", (int)ndir, path, tab + 1);
        add_member(s, a.s, b.s);
    }
    if (f)
        fclose(f);
    return is_ours && s->n > 0;
}

/* Whether the list beside path is decided: the same one is beside the first file of the set. */
static bool read_committed(struct set *s, const char *path)
{
    struct meg_str text = { 0 }, first = { 0 };
    struct set of_first = { 0 };
    const bool is_decided =
        read_list(s, &text, path) && read_list(&of_first, &first, s->v[0].path) && !strcmp(text.s, first.s);

    free_set(&of_first);
    meg_str_free(&text);
    meg_str_free(&first);
    return is_decided;
}

char *meg_commit_resolve(const char *path)
{
    struct set s = { 0 };
    char *at = NULL, *list = list_of(path);

    if (access(list, F_OK) == 0 && read_committed(&s, path))
        for (int i = 0; i < s.n && !at; i++)
            if (!strcmp(s.v[i].path, path) && access(s.v[i].tmp, F_OK) == 0)
                at = meg_strdup(s.v[i].tmp);
    if (at)
        meg_info("%s: reading %s, which an interrupted command completed but did not rename", path, at);
    free_set(&s);
    free(list);
    return at ? at : meg_strdup(path);
}

int meg_commit_stat(const char *path, struct stat *st)
{
    char *at = meg_commit_resolve(path);
    int r = stat(at, st);

    free(at);
    return r;
}

static int write_list(const struct member *m, const struct meg_str *text, struct meg_err *e)
{
    char *list = list_of(m->path);
    int r = meg_write_file(list, text->s, text->n, e);

    if (r < 0)
        unlink(list);
    free(list);
    return r;
}

static int remove_list(const struct member *m, struct meg_err *e)
{
    char *list = list_of(m->path);
    int r = unlink(list) == 0 || errno == ENOENT ? MEG_OK : meg_fail_errno(e, "%s: removing", list);

    free(list);
    return r;
}

/* Write the lists, the deciding one last; on failure none of them is left. */
static int decide(const struct set *s, struct meg_err *e)
{
    struct meg_str text = { 0 };
    int r = MEG_OK;

    spell(s, &text);
    for (int i = s->n; r == MEG_OK && i-- > 0;)
        r = write_list(&s->v[i], &text, e);
    for (int i = 0; r < 0 && i < s->n; i++)
        remove_list(&s->v[i], NULL);
    meg_str_free(&text);
    return r;
}

static void remove_journals(const struct set *s)
{
    for (int i = s->n; i-- > 0;)
        remove_list(&s->v[i], NULL);
}

/* ---- files ---- */

static bool exists(const char *path)
{
    struct stat st;

    return lstat(path, &st) == 0;
}

/* Keep what is there under another name, where the file system has hard links. */
static void link_backup(struct member *m)
{
    char *old = backup_path(m);

    unlink(old);
    m->is_kept = !exists(m->path) || link(m->path, old) == 0;
    free(old);
}

static void remove_backup(const struct member *m)
{
    char *old = backup_path(m);

    meg_remove_tree(old, NULL);
    free(old);
}

/* Give the decided files that still have their temporary names the final ones. */
static int apply(const struct set *s, int *done, struct meg_err *e)
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
            return meg_fail_errno(e, "%s: rename from %s", m->path, m->tmp);
    }
    return MEG_OK;
}

/*
 * Go back to the old files after the renaming of number done failed.  Until the deciding list is gone the
 * new ones count, each to be found under one of its two names.
 */
static bool roll_back(const struct set *s, int done)
{
    bool is_ok = true;

    for (int i = 0; i < done; i++)
        is_ok = is_ok && s->v[i].is_kept;
    for (int i = 0; i < s->n && is_ok; i++) {
        char *old = backup_path(&s->v[i]);

        if (i < done)
            is_ok = rename(s->v[i].path, s->v[i].tmp) == 0;
        if (is_ok && exists(old) && !exists(s->v[i].path))
            is_ok = link(old, s->v[i].path) == 0;
        free(old);
    }
    return is_ok && remove_list(&s->v[0], NULL) == MEG_OK;
}

static int finish(const struct set *s, struct meg_err *e)
{
    int r = meg_fsync_parent(s->v[0].path, e);

    remove_journals(s);
    for (int i = 0; i < s->n; i++)
        remove_backup(&s->v[i]);
    return r;
}

static int replace(struct set *s, bool *is_decided, struct meg_err *e)
{
    int done, r;

    for (int i = 0; i < s->n; i++)
        link_backup(&s->v[i]);
    *is_decided = false;
    if ((r = decide(s, e)) < 0)
        goto out;
    *is_decided = true;
    if ((r = apply(s, &done, e)) == MEG_OK)
        return finish(s, e);
    if (roll_back(s, done)) {
        *is_decided = false;
        remove_journals(s);
    } else if (e) {
        const size_t n = strlen(e->msg);

        snprintf(e->msg + n, sizeof e->msg - n, "; the new files are complete as %s and so on, and are read there",
                 s->v[done].tmp);
    }
out:
    for (int i = 0; i < s->n && !*is_decided; i++)
        remove_backup(&s->v[i]);
    return r;
}

int meg_commit_files(struct meg_file *const file[], int n, struct meg_err *e)
{
    struct set s = { 0 };
    bool is_decided = false;
    int r = MEG_OK;

    if (n == 1)
        return meg_file_commit(file[0], e);
    for (int i = 0; i < n && r == MEG_OK; i++)
        r = meg_file_close(file[i], e);
    if (r < 0)
        return r;
    for (int i = 0; i < n; i++) {
        add_member(&s, meg_strdup(file[i]->path), meg_strdup(file[i]->tmp));
        meg_temporary_unregister(file[i]->made); /* a signal must not remove what is about to be decided */
        file[i]->made = 0;
    }
    r = replace(&s, &is_decided, e);
    for (int i = 0; i < n && is_decided; i++)
        meg_file_detach(file[i]);
    free_set(&s);
    return r;
}

/* ---- folders ---- */

/* Two renames with a decided list around them. */
static int replace_folder(const struct member *m, struct meg_err *e)
{
    const struct set s = { (struct member *)m, 1 };
    char *old = backup_path(m);
    int r;

    if ((r = decide(&s, e)) < 0)
        goto out;
    if (rename(m->path, old) < 0) {
        r = meg_fail_errno(e, "%s: rename to %s", m->path, old);
        remove_journals(&s);
    } else if (rename(m->tmp, m->path) < 0) {
        r = meg_fail_errno(e, "%s: rename from %s", m->path, m->tmp);
        if (rename(old, m->path) == 0)
            remove_journals(&s);
    } else {
        r = finish(&s, e);
    }
out:
    free(old);
    return r;
}

int meg_commit_dir(const char *tmp, const char *folder, struct meg_err *e)
{
    const struct member m = { .path = (char *)folder, .tmp = (char *)tmp };
    int r;

    if (!exists(folder))
        return meg_rename(tmp, folder, e);
    if (renameat2(AT_FDCWD, tmp, AT_FDCWD, folder, RENAME_EXCHANGE) == 0) {
        r = meg_fsync_parent(folder, e);
        meg_remove_tree(tmp, NULL);
        return r;
    }
    if (errno != EINVAL && errno != ENOSYS && errno != EOPNOTSUPP)
        return meg_fail_errno(e, "%s: exchange with %s", folder, tmp);
    return replace_folder(&m, e);
}

/* ---- what a killed process left ---- */

/* A folder cannot be renamed over another: what is under the final name goes aside first. */
static int roll_forward(const struct set *s, struct meg_err *e)
{
    struct stat st;
    int done, r = MEG_OK;

    if (stat(s->v[0].path, &st) == 0 && S_ISDIR(st.st_mode) && exists(s->v[0].tmp)) {
        char *old = backup_path(&s->v[0]);

        r = meg_rename(s->v[0].path, old, e);
        free(old);
    }
    if (r == MEG_OK && (r = apply(s, &done, e)) == MEG_OK)
        r = finish(s, e);
    return r;
}

int meg_commit_recover(const char *path, struct meg_err *e)
{
    struct set s = { 0 };
    char *list = list_of(path);
    int r = MEG_OK;

    if (access(list, F_OK) < 0)
        goto out;
    if (read_committed(&s, path)) {
        meg_info("%s: completing what an interrupted command left", path);
        r = roll_forward(&s, e);
    } else if (s.n > 0) {
        unlink(list);
    } else {
        r = meg_fail(e, MEG_EIO, "%s: no list of meg's, but it has the name of one; move it away", list);
    }
out:
    free_set(&s);
    free(list);
    return r;
}
