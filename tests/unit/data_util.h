/* data_util.h - helpers for the tests of lib/data: a scratch directory, small datasets, reference data. */
#ifndef TESTS_DATA_UTIL_H
#define TESTS_DATA_UTIL_H

#include <dirent.h>
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "data/gpt_data.h"
#include "data/indexed/indexed.h"
#include "data/masked/bert_t5_dataset.h"
#include "tmp.h"
#include "reference.h"
#include "indexed_append.h"

static char scratch[TMP_NAME]; /* directory of this process, the working directory of every test */

static inline int enter_scratch(void **state)
{
    (void)state;
    return tmp_dir(scratch, "data") && chdir(scratch) == 0 ? 0 : -1;
}

/* Build the indices of d, which was planned with the result r.  Set *out to d, or to NULL on failure. */
static inline int open_planned(struct meg_data_splits **out, struct meg_data_splits *d, int r, struct meg_err *e)
{
    if (r == 0 && (r = meg_data_splits_build(d, NULL, NULL, e)) < 0) {
        meg_data_splits_close(d);
        d = NULL;
    }
    *out = d;
    return r;
}

static inline int gpt_data_open(struct meg_data_splits **out, const struct meg_data_conf *c,
                                const struct meg_dataset_spec *spec, struct meg_err *e)
{
    struct meg_data_splits *d = NULL;
    const int r = meg_gpt_data_plan(&d, c, spec, e);

    return open_planned(out, d, r, e);
}

static inline int masked_data_open(struct meg_data_splits **out, const struct meg_data_conf *c,
                                   const struct meg_dataset_spec *spec, const struct meg_masked_conf *masked,
                                   const struct meg_masked_vocab *vocab, struct meg_err *e)
{
    struct meg_data_splits *d = NULL;
    const int r = meg_masked_data_plan(&d, c, spec, masked, vocab, e);

    return open_planned(out, d, r, e);
}

static inline void remove_tree(const char *path)
{
    DIR *dir = opendir(path);
    if (dir) {
        for (struct dirent *d; (d = readdir(dir));) {
            char sub[1024];
            if (strcmp(d->d_name, ".") != 0 && strcmp(d->d_name, "..") != 0 &&
                snprintf(sub, sizeof sub, "%s/%s", path, d->d_name) < (int)sizeof sub)
                remove_tree(sub);
        }
        closedir(dir);
    }
    remove(path);
}

static inline int leave_scratch(void **state)
{
    (void)state;
    if (chdir("/") < 0)
        return -1;
    remove_tree(scratch);
    return 0;
}

static inline int64_t file_size(const char *path)
{
    struct stat st;
    return stat(path, &st) < 0 ? -1 : (int64_t)st.st_size;
}

/* Return the bytes of a file and a terminating zero; the caller frees them. */
static inline char *slurp(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    char *p;

    if (!f)
        fail_msg("cannot open %s", path);
    fseek(f, 0, SEEK_END);
    *n = (size_t)ftell(f);
    rewind(f);
    p = malloc(*n + 1);
    assert_int_equal(fread(p, 1, *n, f), *n);
    p[*n] = 0;
    fclose(f);
    return p;
}

static inline void spew(const char *path, const void *bytes, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static inline void spew_text(const char *path, const char *text)
{
    spew(path, text, strlen(text));
}

static inline void assert_same_file(const char *a, const char *b)
{
    size_t na, nb;
    char *pa = slurp(a, &na), *pb = slurp(b, &nb);
    if (na != nb || memcmp(pa, pb, na) != 0)
        fail_msg("%s (%zu bytes) and %s (%zu bytes) differ", a, na, b, nb);
    free(pa);
    free(pb);
}

/* Write n documents of one sequence each: tokens 1, 2, 3, ... and finally 0. */
static inline void make_dataset(const char *prefix, const int *length, int n)
{
    struct meg_indexed_writer *w;
    struct meg_err e;
    assert_int_equal(meg_indexed_create(&w, prefix, MEG_IDX_U16, &e), 0);
    for (int i = 0; i < n; i++) {
        int32_t *ids = calloc((size_t)length[i] + 1, sizeof *ids);
        for (int k = 0; k < length[i] - 1; k++)
            ids[k] = k + 1;
        assert_int_equal(indexed_append(w, ids, length[i], &e), 0);
        meg_indexed_end_document(w);
        free(ids);
    }
    assert_int_equal(meg_indexed_commit(&w, 1, &e), 0);
}

/* Return the path of a file below tests/data/golden/data, valid until the next call. */
static inline const char *golden_path(const char *name)
{
    char file[1024];

    snprintf(file, sizeof file, "data/%s", name);
    return golden(file);
}

static inline json_t *golden_data(const char *name)
{
    json_error_t err;
    json_t *j = json_load_file(golden_path(name), 0, &err);
    if (!j)
        fail_msg("%s: %s", name, err.text);
    return j;
}

/* Copy golden/data/indexed/NAME.bin and .idx to the scratch directory. */
static inline void copy_golden(const char *name)
{
    for (int i = 0; i < 2; i++) {
        char from[512], to[256];
        size_t n;
        char *p;
        snprintf(to, sizeof to, "%s.%s", name, i ? "bin" : "idx");
        snprintf(from, sizeof from, "indexed/%s", to);
        p = slurp(golden_path(from), &n);
        spew(to, p, n);
        free(p);
    }
}

static inline int64_t get_int(const json_t *o, const char *key)
{
    json_t *v = json_object_get(o, key);
    if (!v)
        fail_msg("no %s in the reference", key);
    return json_is_true(v) ? 1 : json_integer_value(v);
}

static inline const char *get_str(const json_t *o, const char *key)
{
    return json_string_value(json_object_get(o, key));
}

static inline int64_t int_at(const json_t *array, size_t i)
{
    return json_integer_value(json_array_get(array, i));
}

#endif
