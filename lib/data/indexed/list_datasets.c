/* list_datasets.c - list the token datasets in a directory. */
#include "data/indexed/list_datasets.h"
#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "base/mem.h"

void meg_prefix_list_add(struct meg_prefix_list *a, char *prefix)
{
    a->v = meg_realloc_array(a->v, a->n + 1, sizeof *a->v);
    a->v[a->n++] = prefix;
}

void meg_prefix_list_free(struct meg_prefix_list *a)
{
    for (size_t i = 0; i < a->n; i++)
        free(a->v[i]);
    free(a->v);
    *a = (struct meg_prefix_list){ 0 };
}

static int compare_paths(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static char *concat(const char *a, const char *b, const char *c)
{
    struct meg_str s = { 0 };
    meg_str_printf(&s, "%s%s%s", a, b, c);
    return s.s;
}

static bool is_regular(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

/*
 * Check that a regular file is the .bin or .idx of a pair; ignore other types of directory entries.  Add the prefix of
 * the pair for the .bin only, so each prefix is added once.
 */
static int add_pair_file(struct meg_prefix_list *out, const char *folder, const char *name, struct meg_err *e)
{
    char *path = concat(folder, "/", name), *end = strrchr(path, '.'), *other = NULL;
    const bool is_bin = end && strcmp(end, ".bin") == 0, is_idx = end && strcmp(end, ".idx") == 0;
    int r = 0;

    if (!is_regular(path))
        goto out;
    if (!is_bin && !is_idx) {
        r = meg_fail(e, MEG_EFORMAT,
                     "%s: the name ends in neither .bin nor .idx; the directory must contain only token datasets",
                     path);
        goto out;
    }
    *end = 0;
    other = concat(path, is_bin ? ".idx" : ".bin", "");
    if (!is_regular(other)) {
        r = meg_fail(e, MEG_ENOENT, "%s is missing, but %s%s exists", other, path, is_bin ? ".bin" : ".idx");
    } else if (is_bin) {
        meg_prefix_list_add(out, path);
        path = NULL;
    }
out:
    free(path);
    free(other);
    return r;
}

int meg_list_datasets(struct meg_prefix_list *out, const char *folder, struct meg_err *e)
{
    DIR *dir = opendir(folder);
    struct dirent *f;
    int r = 0;

    if (!dir && errno == ENOTDIR)
        return meg_fail(e, MEG_ENOENT,
                        "%s: found a file, expected a directory of token datasets; give names of datasets with "
                        "--datasets",
                        folder);
    if (!dir)
        return meg_fail_errno(e, "%s", folder);
    while (r == 0 && (errno = 0, f = readdir(dir)))
        r = add_pair_file(out, folder, f->d_name, e);
    if (r == 0 && errno != 0)
        r = meg_fail_errno(e, "%s: cannot read the directory", folder);
    closedir(dir);
    if (r == 0 && out->n == 0)
        r = meg_fail(e, MEG_ENOENT,
                     "%s: found no token dataset, expected files NAME.bin and NAME.idx; specify the directory that "
                     "meg-preprocess wrote to",
                     folder);
    if (r == 0)
        qsort(out->v, out->n, sizeof *out->v, compare_paths);
    return r;
}
