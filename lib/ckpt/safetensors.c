/* safetensors.c - read and check safetensors files, and build their headers. */
#include "ckpt/safetensors.h"
#include <endian.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "foreign/foreign.h"
#include "io/json.h"

#define HEADER_MAX 100000000 /* maximum bytes of the JSON header, as in the reference implementation */

static const struct {
    const char *name;
    int nbytes;
} dtypes[] = {
    { "F32", 4 },     { "BF16", 2 }, { "F16", 2 }, { "F64", 8 }, { "I32", 4 },
    { "I64", 8 },     { "BOOL", 1 }, { "U8", 1 },  { "I8", 1 },  { "F8_E4M3", 1 },
    { "F8_E5M2", 1 }, { "I16", 2 },  { "U16", 2 }, { "U32", 4 }, { "U64", 8 },
};
enum { NDTYPES = sizeof dtypes / sizeof dtypes[0] };

static int find_dtype(const char *name)
{
    for (int i = 0; i < NDTYPES; i++)
        if (strcmp(dtypes[i].name, name) == 0)
            return i;
    return -1;
}

int meg_st_dtype_nbytes(const char *dtype)
{
    const int d = find_dtype(dtype);

    return d < 0 ? 0 : dtypes[d].nbytes;
}

const char *meg_st_shape(char *buf, const int64_t *dim, int ndim)
{
    char *p = buf;

    *p++ = '[';
    for (int i = 0; i < ndim; i++)
        p += sprintf(p, i ? ",%" PRId64 : "%" PRId64, dim[i]);
    *p++ = ']';
    *p = 0;
    return buf;
}

int64_t meg_st_numel(const struct meg_st_tensor *t)
{
    int64_t n = 1;

    for (int i = 0; i < t->ndim; i++)
        n *= t->dim[i];
    return n;
}

const void *meg_st_data(const struct meg_st_tensor *t, void **block)
{
    const struct meg_st_view *v = t->view;
    unsigned char *to;

    *block = NULL;
    if (!v)
        return t->data;
    *block = to = malloc((size_t)t->nbytes + 1);
    for (int64_t i = 0, n = meg_st_numel(t); to && i < n; i++, to += v->nbytes) {
        int64_t at = 0, rest = i;

        for (int k = t->ndim; k-- > 0; rest /= t->dim[k])
            at += rest % t->dim[k] * v->stride[k];
        memcpy(to, v->first + at * v->nbytes, (size_t)v->nbytes);
    }
    return *block;
}

/* ---- reading ---- */

/* Parse the header entry of one tensor.  file_offset is relative to the end of the header; check_ranges converts it. */
static int read_entry(struct meg_st_tensor *t, const char *name, const json_t *entry, const char *path,
                      struct meg_err *e)
{
    char from[512], shape[MEG_ST_SHAPE_CHARS];
    const char *dtype;
    json_t *dims, *offsets, *v;
    int64_t numel = 1, at[2];
    size_t i;
    int d, r;

    snprintf(from, sizeof from, "%s: tensor %.200s", path, name);
    if (!json_is_object(entry))
        return meg_fail(e, MEG_EFORMAT, "%s: the entry in the header is not a JSON object", from);
    if ((r = meg_json_get_str(entry, "dtype", MEG_JSON_REQUIRED, &dtype, from, e)) < 0 ||
        (r = meg_json_get_array(entry, "shape", MEG_JSON_REQUIRED, &dims, from, e)) < 0 ||
        (r = meg_json_get_array(entry, "data_offsets", MEG_JSON_REQUIRED, &offsets, from, e)) < 0)
        return r;
    d = find_dtype(dtype);
    if (d < 0)
        return meg_fail(e, MEG_EFORMAT,
                        "%s: dtype is %.20s, expected F32, F16, BF16, I64 or another type of safetensors", from, dtype);
    if (json_array_size(dims) > MEG_ST_MAXDIM)
        return meg_fail(e, MEG_EFORMAT, "%s: %zu dimensions, expected at most %d", from, json_array_size(dims),
                        MEG_ST_MAXDIM);
    t->name = name;
    t->dtype = dtypes[d].name;
    json_array_foreach(dims, i, v)
    {
        int64_t n = json_is_integer(v) ? json_integer_value(v) : -1;

        if (n < 0 || __builtin_mul_overflow(numel, n, &numel))
            return meg_fail(e, MEG_EFORMAT,
                            "%s: invalid shape; expected non-negative integers whose product fits in 63 bits", from);
        t->dim[t->ndim++] = n;
    }
    if (json_array_size(offsets) != 2)
        return meg_fail(e, MEG_EFORMAT, "%s: data_offsets has %zu numbers, expected 2", from, json_array_size(offsets));
    json_array_foreach(offsets, i, v)
    {
        at[i] = json_is_integer(v) ? json_integer_value(v) : -1;
        if (at[i] < 0)
            return meg_fail(e, MEG_EFORMAT, "%s: data_offsets must be two non-negative byte offsets", from);
    }
    if (__builtin_mul_overflow(numel, dtypes[d].nbytes, &t->nbytes) || at[1] - at[0] != t->nbytes)
        return meg_fail(e, MEG_EFORMAT, "%s: shape %s and dtype %s do not match data_offsets %" PRId64 " to %" PRId64,
                        from, meg_st_shape(shape, t->dim, t->ndim), t->dtype, at[0], at[1]);
    t->file_offset = at[0];
    return 0;
}

static int by_offset(const void *a, const void *b)
{
    const struct meg_st_tensor *x = a, *y = b;

    if (x->file_offset != y->file_offset)
        return x->file_offset < y->file_offset ? -1 : 1;
    return (x->nbytes > y->nbytes) - (x->nbytes < y->nbytes);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct meg_st_tensor *)a)->name, ((const struct meg_st_tensor *)b)->name);
}

/* Check that the tensors cover the data without gaps and overlaps.  Make offsets relative to the file; sort by name. */
static int check_ranges(struct meg_st *st, int64_t data, struct meg_err *e)
{
    int64_t at = 0, have = (int64_t)st->map.n - data;

    qsort(st->t, (size_t)st->n, sizeof *st->t, by_offset);
    for (int i = 0; i < st->n; i++) {
        const struct meg_st_tensor *t = &st->t[i];

        if (t->file_offset != at)
            return meg_fail(e, MEG_EFORMAT,
                            "%s: tensor %.200s begins at byte %" PRId64 " of the data, expected byte %" PRId64
                            "; tensors must be adjacent",
                            st->path, t->name, t->file_offset, at);
        if (t->nbytes > INT64_MAX - data - at)
            return meg_fail(e, MEG_EFORMAT,
                            "%s: tensor %.200s ends at byte %" PRId64 " of the data, beyond any file size", st->path,
                            t->name, t->file_offset + t->nbytes);
        at += t->nbytes;
    }
    if (at != have)
        return meg_fail(e, MEG_EFORMAT, "%s: %s: size is %zu bytes, but the header requires %" PRId64, st->path,
                        at > have ? "the file is truncated" : "there is data after the last tensor", st->map.n,
                        data + at);
    for (int i = 0; i < st->n; i++) {
        st->t[i].file_offset += data;
        st->t[i].data = st->map.p + st->t[i].file_offset;
    }
    qsort(st->t, (size_t)st->n, sizeof *st->t, by_name);
    return 0;
}

static int read_header(struct meg_st *st, struct meg_err *e)
{
    const char *name, *text = (const char *)st->map.p + 8;
    uint64_t n;
    json_t *entry, *s;
    const char *key;
    int r;

    if (st->map.n < 8)
        return meg_fail(e, MEG_EFORMAT, "%s: size is %zu bytes, but a safetensors file has at least 8", st->path,
                        st->map.n);
    memcpy(&n, st->map.p, 8);
    n = le64toh(n);
    if (n > HEADER_MAX)
        return meg_fail(e, MEG_EFORMAT, "%s: header of %" PRIu64 " bytes, expected at most %d: not a safetensors file",
                        st->path, n, HEADER_MAX);
    if (n > st->map.n - 8)
        return meg_fail(e, MEG_EFORMAT,
                        "%s: the file is truncated: size is %zu bytes, but the header alone requires %" PRIu64,
                        st->path, st->map.n, n + 8);
    if (n == 0 || text[0] != '{')
        return meg_fail(e, MEG_EFORMAT, "%s: the header does not begin with {: not a safetensors file", st->path);
    if ((r = meg_json_parse(&st->header, text, n, st->path, e)) < 0)
        return r;
    st->t = meg_new(json_object_size(st->header) * sizeof *st->t);
    json_object_foreach(st->header, name, entry)
    {
        if (strcmp(name, "__metadata__") == 0) {
            if (!json_is_object(entry))
                return meg_fail(e, MEG_EFORMAT, "%s: __metadata__ is not a JSON object", st->path);
            json_object_foreach(entry, key, s)
            {
                if (!json_is_string(s))
                    return meg_fail(e, MEG_EFORMAT, "%s: __metadata__: the value of \"%.100s\" is not a string",
                                    st->path, key);
            }
        } else if ((r = read_entry(&st->t[st->n++], name, entry, st->path, e)) < 0) {
            return r;
        }
    }
    return check_ranges(st, 8 + (int64_t)n, e);
}

int meg_st_open(struct meg_st **out, const char *path, struct meg_err *e)
{
    struct meg_st *st = meg_new(sizeof *st);
    int r;

    st->path = meg_strdup(path);
    if ((r = meg_mmap_open(&st->map, path, e)) < 0)
        goto out;
    r = meg_foreign_explain(read_header(st, e), path, st->map.p, st->map.n, MEG_EXPECT_SAFETENSORS, e);
    if (r < 0)
        goto out;
    *out = st;
    st = NULL;
out:
    meg_st_close(st);
    return r;
}

bool meg_st_is_same(const struct meg_st_tensor *a, const struct meg_st_tensor *b)
{
    return a && strcmp(a->dtype, b->dtype) == 0 && a->ndim == b->ndim && a->file_offset == b->file_offset &&
           memcmp(a->dim, b->dim, (size_t)b->ndim * sizeof *b->dim) == 0;
}

int meg_st_map(struct meg_st *st, struct meg_err *e)
{
    struct meg_st *found;
    int r;

    if (st->map.p || st->n == 0 || st->t[0].data || st->t[0].view)
        return 0;
    if ((r = meg_st_open(&found, st->path, e)) < 0)
        return r;
    for (int i = 0; r == 0 && i < st->n; i++) {
        const struct meg_st_tensor *t = meg_st_find(found, st->t[i].name);

        if (!meg_st_is_same(t, &st->t[i]))
            r = meg_fail(e, MEG_EFORMAT,
                         "%s: tensor %.200s is missing, or its dtype, shape or offset differs from manifest.json as "
                         "read by rank 0; all ranks must read the same files",
                         st->path, st->t[i].name);
        else
            st->t[i].data = t->data;
    }
    if (r == 0) {
        st->map = found->map;
        found->map = (struct meg_mmap){ 0 };
    } else {
        for (int i = 0; i < st->n; i++)
            st->t[i].data = NULL;
    }
    meg_st_close(found);
    return r;
}

void meg_st_close(struct meg_st *st)
{
    if (!st)
        return;
    meg_mmap_close(&st->map);
    json_decref(st->header);
    for (int i = 0; i < st->nowned; i++)
        free(st->owned[i]);
    free(st->owned);
    free(st->t);
    free(st->path);
    free(st);
}

void meg_st_own(struct meg_st *st, void *block)
{
    st->owned = meg_realloc_array(st->owned, (size_t)st->nowned + 1, sizeof *st->owned);
    st->owned[st->nowned++] = block;
}

int meg_st_sort(struct meg_st *st, struct meg_err *e)
{
    if (st->n)
        qsort(st->t, (size_t)st->n, sizeof *st->t, by_name);
    for (int i = 1; i < st->n; i++)
        if (strcmp(st->t[i - 1].name, st->t[i].name) == 0)
            return meg_fail(e, MEG_EFORMAT, "%s: duplicate tensor %.200s", st->path, st->t[i].name);
    return 0;
}

const struct meg_st_tensor *meg_st_find(const struct meg_st *st, const char *name)
{
    const struct meg_st_tensor key = { .name = name };

    return st->n ? bsearch(&key, st->t, (size_t)st->n, sizeof *st->t, by_name) : NULL;
}

/* ---- writing ---- */

static int64_t element_bytes(const struct meg_st_tensor *t)
{
    int d = find_dtype(t->dtype);

    MEG_ASSERT(d >= 0);
    return dtypes[d].nbytes;
}

static int by_dtype_and_name(const void *a, const void *b)
{
    int64_t x = element_bytes(a), y = element_bytes(b);

    return x != y ? (x > y ? -1 : 1) : by_name(a, b);
}

void meg_st_build_header(struct meg_st_tensor *t, int n, bool is_hf, struct meg_str *header)
{
    json_t *all = json_object();
    struct meg_str text = { 0 };
    int64_t at = 0;
    uint64_t length;

    qsort(t, (size_t)n, sizeof *t, by_dtype_and_name);
    if (is_hf)
        json_object_set_new(all, "__metadata__", json_pack("{s:s}", "format", "pt"));
    for (int i = 0; i < n; i++) {
        json_t *shape = json_array();

        t[i].file_offset = at;
        t[i].nbytes = element_bytes(&t[i]);
        for (int k = 0; k < t[i].ndim; k++) {
            t[i].nbytes *= t[i].dim[k];
            json_array_append_new(shape, json_integer(t[i].dim[k]));
        }
        at += t[i].nbytes;
        json_object_set_new(all, t[i].name,
                            json_pack("{s:s,s:o,s:[I,I]}", "dtype", t[i].dtype, "shape", shape, "data_offsets",
                                      (json_int_t)t[i].file_offset, (json_int_t)at));
    }
    meg_json_dump(all, 0, &text);
    json_decref(all);
    while (text.n % 8)
        meg_str_add(&text, " ", 1);
    length = htole64(text.n);
    meg_str_add(header, &length, sizeof length);
    meg_str_add(header, text.s, text.n);
    for (int i = 0; i < n; i++)
        t[i].file_offset += 8 + (int64_t)text.n;
    meg_str_free(&text);
}

const struct meg_st_tensor *meg_st_find_written(const struct meg_st_tensor *t, int n, const char *name,
                                                enum meg_dtype dtype)
{
    const struct meg_st_tensor key = { .name = name, .dtype = meg_dtype_name(dtype) }, *found;

    found = bsearch(&key, t, (size_t)n, sizeof *t, by_dtype_and_name);
    MEG_ASSERT(found);
    return found;
}
