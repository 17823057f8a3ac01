/*
 * folder.c - the files and directories in SAVE.
 *
 * A checkpoint is written to the directory NAME.tmp.PID.HOST.  To commit the checkpoint, this directory is renamed to
 * NAME (file/commit.h).  A committed checkpoint can be opened at any time.  The writer holds the lock of SAVE, so other
 * temporary directories in SAVE are leftovers of killed saves.  The writer removes these leftovers.
 */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/log.h"
#include "base/num.h"
#include "ckpt/internal.h"
#include "file/commit.h"
#include "file/temporary.h"

char *ckpt_path(const char *dir, const char *name)
{
    struct meg_str s = { 0 };

    meg_str_printf(&s, "%s/%s", dir, name);
    return s.s;
}

/* Print "iter_0000100" or "release" to buf; return buf. */
static const char *folder_name(char buf[64], int64_t iteration)
{
    if (iteration == MEG_CKPT_RELEASE)
        snprintf(buf, 64, "release");
    else
        snprintf(buf, 64, "iter_%07" PRId64, iteration);
    return buf;
}

/*
 * Parse a name that begins with iter_NNNNNNN or release: set *iteration, and set *suffix to the rest of the name.
 * Return false for any other name.
 */
static bool parse_name(const char *name, int64_t *iteration, const char **suffix)
{
    char digits[24];
    size_t n;

    if (strncmp(name, "release", 7) == 0) {
        *iteration = MEG_CKPT_RELEASE;
        *suffix = name + 7;
        return true;
    }
    if (strncmp(name, "iter_", 5) != 0)
        return false;
    n = strspn(name + 5, "0123456789");
    if (n < 7 || n >= sizeof digits)
        return false;
    memcpy(digits, name + 5, n);
    digits[n] = 0;
    *suffix = name + 5 + n;
    return meg_parse_i64(digits, iteration);
}

bool ckpt_path_exists(const char *dir, const char *name)
{
    char *path = ckpt_path(dir, name);
    const bool exists = access(path, F_OK) == 0;

    free(path);
    return exists;
}

int ckpt_write_text(const char *dir, const char *name, const struct meg_str *text, struct meg_err *e)
{
    char *path = ckpt_path(dir, name);
    int r = meg_write_file(path, text->s, text->n, e);

    free(path);
    return r;
}

int ckpt_read_tracker(const char *dir, int64_t *iteration, struct meg_err *e)
{
    char *path = ckpt_path(dir, CKPT_TRACKER);
    struct meg_str text = { 0 };
    int r = meg_read_regular(path, &text, e);
    size_t begin;

    if (r < 0)
        goto out;
    while (text.n > 0 && isspace((unsigned char)text.s[text.n - 1]))
        text.s[--text.n] = 0;
    for (begin = 0; begin < text.n && isspace((unsigned char)text.s[begin]);)
        begin++;
    meg_str_remove_prefix(&text, begin);
    if (text.n == strlen("release") && strcmp(text.s, "release") == 0)
        *iteration = MEG_CKPT_RELEASE;
    else if (!text.n || strlen(text.s) != text.n || !meg_parse_i64(text.s, iteration) || *iteration < 0)
        r = meg_fail(e, MEG_EFORMAT, "%s: found '%.40s', expected an iteration number or the word release", path,
                     text.n ? text.s : "");
out:
    meg_str_free(&text);
    free(path);
    return r;
}

static int by_value(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x > y) - (x < y);
}

/*
 * List in *out, in ascending order, the iterations that have a directory in dir.  Return their number.  The caller
 * frees *out.
 */
static int list_iterations(const char *dir, int64_t **out)
{
    DIR *d = opendir(dir);
    const char *suffix;
    struct dirent *ent;
    int64_t it;
    int n = 0;

    *out = NULL;
    while (d && (ent = readdir(d))) {
        if (!parse_name(ent->d_name, &it, &suffix) || *suffix || it == MEG_CKPT_RELEASE)
            continue;
        *out = meg_realloc_array(*out, (size_t)n + 1, sizeof **out);
        (*out)[n++] = it;
    }
    if (d)
        closedir(d);
    if (n)
        qsort(*out, (size_t)n, sizeof **out, by_value);
    return n;
}

bool ckpt_has_iterations(const char *dir)
{
    int64_t *it;
    int n = list_iterations(dir, &it);

    free(it);
    return n > 0;
}

int ckpt_list_older(int64_t **out, const char *dir, int64_t than)
{
    int n = list_iterations(dir, out);

    while (n > 0 && (*out)[n - 1] >= than)
        n--;
    return n;
}

int64_t meg_ckpt_newest_iteration(const char *dir)
{
    int64_t *it;
    const int n = list_iterations(dir, &it);
    const int64_t newest = n ? it[n - 1] : -1;

    free(it);
    return newest;
}

int ckpt_newest_complete(const char *dir, int64_t *iteration, struct meg_err *e)
{
    char manifest[80], name[64];
    int64_t *it;
    int n = list_iterations(dir, &it);

    while (n > 0) {
        snprintf(manifest, sizeof manifest, "%s/manifest.json", folder_name(name, it[n - 1]));
        if (ckpt_path_exists(dir, manifest))
            break;
        n--;
    }
    if (n > 0)
        *iteration = it[n - 1];
    free(it);
    return n > 0 ? 0
                 : meg_fail(e, MEG_ENOENT,
                            "%s: no %s, and no iteration has a manifest.json, which marks a complete iteration; choose "
                            "an iteration with --ckpt-step",
                            dir, CKPT_TRACKER);
}

int ckpt_find_iteration(char **path, const char *dir, int64_t iteration, struct meg_err *e)
{
    struct meg_str available = { 0 };
    char name[64], *final = ckpt_path(dir, folder_name(name, iteration));
    int64_t *it;
    int n, r;

    *path = meg_commit_resolve(final);
    free(final);
    if (access(*path, F_OK) == 0)
        return 0;
    free(*path);
    *path = NULL;
    n = list_iterations(dir, &it);
    for (int i = 0; i < n && available.n < 400; i++)
        meg_str_printf(&available, "%s%" PRId64, i ? ", " : "", it[i]);
    r = meg_fail(e, MEG_ENOENT, "%s/%s does not exist; %s%s", dir, folder_name(name, iteration),
                 n ? "available iterations: " : "there are no other iterations", n ? available.s : "");
    meg_str_free(&available);
    free(it);
    return r;
}

static bool begins_with(const char *s, const char *prefix)
{
    return strncmp(s, prefix, strlen(prefix)) == 0;
}

/*
 * Call visit on each name in dir, up to the first error.  All names are read first, so visit may rename and remove
 * files.
 */
static int for_each_name(const char *dir, int (*visit)(const char *dir, const char *name, struct meg_err *e),
                         struct meg_err *e)
{
    struct meg_str names = { 0 };
    DIR *d = opendir(dir);
    struct dirent *ent;
    int r = 0;

    if (!d)
        return meg_fail_errno(e, "%s", dir);
    while ((ent = readdir(d)))
        meg_str_add(&names, ent->d_name, strlen(ent->d_name) + 1);
    closedir(d);
    for (size_t i = 0; r == 0 && i < names.n; i += strlen(names.s + i) + 1)
        r = visit(dir, names.s + i, e);
    meg_str_free(&names);
    return r;
}

/* If the file `name` is the journal of an interrupted commit, complete or roll back this commit. */
static int recover_commit(const char *dir, const char *name, struct meg_err *e)
{
    const char *suffix;
    int64_t iteration;
    char buf[64], *path;
    int r;

    if (!parse_name(name, &iteration, &suffix) || strcmp(suffix, ".commit") != 0)
        return 0;
    path = ckpt_path(dir, folder_name(buf, iteration));
    r = meg_commit_recover(path, e);
    free(path);
    return r;
}

static int remove_stale(const char *dir, const char *name, struct meg_err *e)
{
    const char *suffix = "";
    int64_t iteration;
    char *path;
    int r;

    if (!begins_with(name, CKPT_TRACKER ".tmp.") && !begins_with(name, "done.tmp.") &&
        (!parse_name(name, &iteration, &suffix) || !begins_with(suffix, ".tmp.")))
        return 0;
    path = ckpt_path(dir, name);
    r = meg_remove_tree(path, e);
    free(path);
    return r;
}

int ckpt_make_folder(char **tmp, const char *dir, int64_t iteration, struct meg_err *e)
{
    char name[64], *final = ckpt_path(dir, folder_name(name, iteration));
    int r;

    *tmp = NULL;
    /* complete or roll back interrupted commits, and remove the temporary files and directories of killed saves */
    if ((r = meg_mkdirs(dir, e)) == 0 && (r = for_each_name(dir, recover_commit, e)) == 0 &&
        (r = for_each_name(dir, remove_stale, e)) == 0)
        r = meg_temporary_dir(tmp, final, e);
    free(final);
    return r;
}

int ckpt_commit(const char *dir, const char *tmp, int64_t iteration, struct meg_err *e)
{
    char name[64], text[32];
    char *final = ckpt_path(dir, folder_name(name, iteration));
    char *tracker = ckpt_path(dir, CKPT_TRACKER);
    int r = meg_commit_dir(tmp, final, NULL, e);

    if (iteration == MEG_CKPT_RELEASE)
        snprintf(text, sizeof text, "release\n");
    else
        snprintf(text, sizeof text, "%" PRId64 "\n", iteration);
    if (r == 0)
        r = meg_write_file(tracker, text, strlen(text), e);
    free(final);
    free(tracker);
    return r;
}

/*
 * Remove the directory of a checkpoint.  It is first renamed to a temporary name, because a partly removed directory
 * must not be taken for a checkpoint.
 */
static int remove_one(const char *dir, int64_t iteration, struct meg_err *e)
{
    char name[64];
    char *path = ckpt_path(dir, folder_name(name, iteration)), *tmp = meg_temporary_name(path, 0);
    int r = meg_rename(path, tmp, e);

    if (r == 0)
        r = meg_remove_tree(tmp, e);
    free(path);
    free(tmp);
    return r;
}

void ckpt_keep_last(const char *dir, int64_t iteration, int64_t keep, int64_t loaded)
{
    struct meg_err e;
    int64_t *it;
    int n = list_iterations(dir, &it), kept = 1;

    while (n > 0 && it[n - 1] >= iteration)
        n--;
    while (n-- > 0) {
        if (it[n] == loaded || kept++ < keep)
            continue;
        if (remove_one(dir, it[n], &e) < 0)
            meg_warn("cannot completely remove the checkpoint of iteration %" PRId64 ": %s", it[n], e.msg);
    }
    free(it);
}

int meg_ckpt_mark_done(const char *dir, bool is_done, struct meg_err *e)
{
    char *path = ckpt_path(dir, "done");
    int r = 0;

    if (is_done) {
        r = meg_write_file(path, "", 0, e);
    } else if (unlink(path) == 0) {
        r = meg_fsync_dir(dir, e);
    } else if (errno != ENOENT) {
        r = meg_fail_errno(e, "%s", path);
    }
    free(path);
    return r;
}
