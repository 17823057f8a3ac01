/* Tensors written with a checksum of each chunk, and held against it when they are read. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/json.h"
#include "ckpt/internal.h"

struct chunk {
    const struct meg_st_tensor *t;
    int64_t first, n; /* bytes of the tensor */
    char hash[33];
};

/* All chunks of n tensors, malloc'ed.  A tensor without elements has one chunk, of no bytes. */
static int64_t cut(struct chunk **out, const struct meg_st_tensor *t, int n)
{
    struct chunk *c = NULL;
    int64_t nchunks = 0;

    for (int i = 0; i < n; i++) {
        int64_t at = 0;

        do {
            c = meg_realloc_array(c, (size_t)nchunks + 1, sizeof *c);
            c[nchunks].t = &t[i];
            c[nchunks].first = at;
            c[nchunks].n = t[i].nbytes - at < CKPT_CHUNK ? t[i].nbytes - at : CKPT_CHUNK;
            at += c[nchunks++].n;
        } while (at < t[i].nbytes);
    }
    *out = c;
    return nchunks;
}

static json_t *entry(const char *file, const struct meg_st_tensor *t)
{
    json_t *shape = json_array();

    for (int i = 0; i < t->ndim; i++)
        json_array_append_new(shape, json_integer(t->dim[i]));
    return json_pack("{s:s,s:I,s:o,s:s,s:[]}", "file", file, "offset", (json_int_t)t->begin,
                     "shape", shape, "dtype", t->dtype, "xxh3_128");
}

int ckpt_write_tensors(const char *dir, const char *name, const struct meg_st_tensor *t, int n,
                       const struct meg_str *header, json_t *manifest, struct meg_err *e)
{
    char *path = ckpt_path(dir, name);
    struct meg_file f = { 0 };
    struct chunk *c = NULL;
    int64_t nchunks = cut(&c, t, n);
    int r = meg_file_create(&f, path, e);

    if (r == 0)
        r = meg_file_pwrite(&f, header->s, header->n, 0, e);
    if (r < 0)
        goto out;
#pragma omp parallel for schedule(dynamic)
    for (int64_t i = 0; i < nchunks; i++) {
        const char *bytes = (const char *)c[i].t->data + c[i].first;
        struct meg_err mine;
        int is_failed;

#pragma omp atomic read
        is_failed = r;
        if (is_failed < 0)
            continue;
        meg_xxh3_128_hex(c[i].hash, bytes, (size_t)c[i].n);
        if (meg_file_pwrite(&f, bytes, (size_t)c[i].n, c[i].t->begin + c[i].first, &mine) < 0) {
#pragma omp critical(ckpt_write)
            {
                if (e)
                    *e = mine;
#pragma omp atomic write
                r = mine.code;
            }
        }
    }
    if (r < 0 || (r = meg_file_commit(&f, e)) < 0)
        goto out;
    for (int64_t i = 0; i < nchunks; i++) {
        if (c[i].first == 0)
            json_object_set_new(manifest, c[i].t->name, entry(name, c[i].t));
        json_array_append_new(json_object_get(json_object_get(manifest, c[i].t->name), "xxh3_128"),
                              json_string(c[i].hash));
    }
out:
    meg_file_abandon(&f);
    free(c);
    free(path);
    return r;
}

int ckpt_check_tensor(const json_t *manifest, const struct meg_st *st,
                      const struct meg_st_tensor *t, struct meg_err *e)
{
    const json_t *known = json_object_get(json_object_get(manifest, t->name), "xxh3_128");
    struct chunk *c;
    int64_t n = cut(&c, t, 1);
    int r = 0;

    if ((int64_t)json_array_size(known) != n)
        r = meg_fail(e, MEG_EFORMAT,
                     "%s: tensor %s: manifest.json has %zu checksums of it, its %" PRId64
                     " bytes have %" PRId64,
                     st->path, t->name, json_array_size(known), t->nbytes, n);
    for (int64_t i = 0; r == 0 && i < n; i++) {
        const char *want = json_string_value(json_array_get(known, (size_t)i));

        meg_xxh3_128_hex(c[i].hash, (const char *)t->data + c[i].first, (size_t)c[i].n);
        if (!want || strcmp(want, c[i].hash))
            r = meg_fail(e, MEG_EFORMAT,
                         "%s: tensor %s, chunk %" PRId64 " of %" PRId64 " (bytes %" PRId64
                         " to %" PRId64 " of the file): checksum %s, manifest.json says %s; the "
                                        "file is damaged: copy it again, or "
                         "load another iteration with --ckpt-step",
                         st->path, t->name, i, n, t->begin + c[i].first,
                         t->begin + c[i].first + c[i].n, c[i].hash, want ? want : "nothing");
    }
    free(c);
    return r;
}
