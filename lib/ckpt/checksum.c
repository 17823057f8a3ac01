/*
 * checksum.c - verify the checksums of tensors.
 *
 * In a native checkpoint, manifest.json has a checksum of each chunk of a tensor.  In a file of torch.save, the central
 * directory of the ZIP file has a CRC-32 of each member.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "base/hash.h"
#include "ckpt/internal.h"
#include "ckpt/megatron/zip.h"
#include "io/json.h"

void ckpt_add_chunks(struct ckpt_chunk **chunk, int64_t *nchunks, const struct meg_st_tensor *t, int n, int file)
{
    int64_t more = 0;
    struct ckpt_chunk *c;

    for (int i = 0; i < n; i++)
        more += t[i].nbytes ? (t[i].nbytes + CKPT_CHUNK - 1) / CKPT_CHUNK : 1;
    *chunk = meg_realloc_array(*chunk, (size_t)(*nchunks + more), sizeof **chunk);
    c = *chunk + *nchunks;
    for (int i = 0; i < n; i++) {
        int64_t at = 0;

        do {
            const int64_t left = t[i].nbytes - at;

            *c++ = (struct ckpt_chunk){ &t[i], file, at, left < CKPT_CHUNK ? left : CKPT_CHUNK };
            at += CKPT_CHUNK;
        } while (at < t[i].nbytes);
    }
    *nchunks += more;
}

/* A chunk of a mapped tensor and its checksum in the manifest. */
struct expected_chunk {
    const struct ckpt_mapped_tensor *m;
    struct ckpt_chunk c;
    int64_t i, n;         /* index of the chunk, and the number of chunks of the tensor */
    const char *expected; /* checksum in the manifest; NULL: the entry is not a string */
};

static int list_chunks(struct expected_chunk **out, int64_t *nout, const json_t *manifest,
                       const struct ckpt_mapped_tensor *m, int n, struct meg_err *e)
{
    for (int i = 0; i < n; i++) {
        const json_t *sums = json_object_get(json_object_get(manifest, m[i].t->name), "xxh3_128");
        struct ckpt_chunk *c = NULL;
        int64_t nchunks = 0;

        ckpt_add_chunks(&c, &nchunks, m[i].t, 1, 0);
        if ((int64_t)json_array_size(sums) != nchunks) {
            free(c);
            return meg_fail(e, MEG_EFORMAT,
                            "%s: tensor %s: manifest.json has %zu checksums for %" PRId64 " bytes, expected %" PRId64
                            ", one per chunk of 16 MiB; copy the checkpoint again",
                            m[i].st->path, m[i].t->name, json_array_size(sums), m[i].t->nbytes, nchunks);
        }
        *out = meg_realloc_array(*out, (size_t)(*nout + nchunks), sizeof **out);
        for (int64_t k = 0; k < nchunks; k++)
            (*out)[(*nout)++] =
                (struct expected_chunk){ &m[i], c[k], k, nchunks, json_string_value(json_array_get(sums, (size_t)k)) };
        free(c);
    }
    return 0;
}

static int check_chunk(const void *list, int64_t i, struct meg_err *e)
{
    const struct expected_chunk *k = (const struct expected_chunk *)list + i;
    const struct meg_st_tensor *t = k->m->t;
    struct meg_xxh3_128 *sum;
    char hash[33];
    void *block;
    const char *data = meg_st_data(t, &block);

    if (!data)
        return meg_fail(e, MEG_EFAIL, "%s: out of memory while checking tensor %s", k->m->st->path, t->name);
    sum = meg_xxh3_128_begin();
    for (int64_t at = 0, n; at < k->c.n; at += n) {
        n = k->c.n - at < CKPT_DROP_NBYTES ? k->c.n - at : CKPT_DROP_NBYTES;
        meg_xxh3_128_add(sum, data + k->c.first + at, (size_t)n);
        meg_mmap_drop(&k->m->st->map, data + k->c.first + at, (size_t)n);
    }
    meg_xxh3_128_end(sum, hash);
    free(block);
    if (k->expected && strcmp(k->expected, hash) == 0)
        return 0;
    return meg_fail(e, MEG_EFORMAT,
                    "%s: tensor %s, chunk %" PRId64 " of %" PRId64 " (bytes %" PRId64 " to %" PRId64
                    " of the file): the checksum is %s, but manifest.json has %s; the file is damaged: copy it "
                    "again, or load a different iteration with --ckpt-step",
                    k->m->st->path, t->name, k->i + 1, k->n, t->file_offset + k->c.first,
                    t->file_offset + k->c.first + k->c.n - 1, hash, k->expected ? k->expected : "none");
}

/* Check the CRC-32 of the ZIP member that contains a tensor, if the file stores one. */
static int check_crc(const void *list, int64_t i, struct meg_err *e)
{
    const struct ckpt_mapped_tensor *m = (const struct ckpt_mapped_tensor *)list + i;
    const uint32_t crc = m->t->container_data ? meg_zip_crc(m->t->container_data, m->t->container_nbytes) : 0;

    ckpt_drop_pages(m->st, m->t);
    if (!m->t->container_data || crc == m->t->crc)
        return 0;
    return meg_fail(
        e, MEG_EFORMAT,
        "%s: tensor %s: the CRC-32 is %08x, but the ZIP central directory has %08x; the file is damaged: copy it again",
        m->st->path, m->t->name, crc, m->t->crc);
}

/* Check item i of a list. */
typedef int check_fn(const void *list, int64_t i, struct meg_err *e);

/* Check items [first, last) in parallel.  If any items fail, return the error of the first of them. */
static int check_in_parallel(check_fn *check, const void *list, int64_t first, int64_t last, struct meg_err *e)
{
    int64_t failed = last; /* the first item that fails, or `last` */
    int r = 0;

#pragma omp parallel for schedule(dynamic)
    for (int64_t i = first; i < last; i++) {
        struct meg_err item_error;

        if (check(list, i, &item_error) < 0) {
#pragma omp critical(ckpt_check)
            if (i < failed) {
                failed = i;
                r = item_error.code;
                if (e)
                    *e = item_error;
            }
        }
    }
    return r;
}

int ckpt_verify_checksums(const json_t *manifest, const struct ckpt_mapped_tensor *m, int n, int rank, int nranks,
                          struct meg_err *e)
{
    struct expected_chunk *chunk = NULL;
    int64_t nchunks = 0, first, last;
    int r;

    if (!manifest)
        return check_in_parallel(check_crc, m, meg_partition_begin(n, nranks, rank),
                                 meg_partition_begin(n, nranks, rank + 1), e);
    r = list_chunks(&chunk, &nchunks, manifest, m, n, e);
    first = meg_partition_begin(nchunks, nranks, rank);
    last = meg_partition_begin(nchunks, nranks, rank + 1);
    for (int64_t i = first; r == 0 && i < last; i++)
        r = meg_st_map(chunk[i].m->st, e);
    if (r == 0)
        r = check_in_parallel(check_chunk, chunk, first, last, e);
    free(chunk);
    return r;
}

static int verify_files(const struct meg_ckpt *c, struct meg_err *e)
{
    struct ckpt_mapped_tensor *m = NULL;
    int64_t cap = 0;
    int n = 0, r;

    for (int i = 0; i < c->nfiles; i++)
        for (int k = 0; k < c->file[i]->n; k++) {
            const struct meg_st_tensor *t = &c->file[i]->t[k];

            for (int64_t j = 0; j < (t->tile ? t->ntiles : 1); j++) {
                m = meg_grow(m, n, &cap, sizeof *m);
                m[n++] = t->tile ? (struct ckpt_mapped_tensor){ t->tile[j].st, &t->tile[j].t }
                                 : (struct ckpt_mapped_tensor){ c->file[i], t };
            }
        }
    r = ckpt_verify_checksums(c->manifest, m, n, 0, 1, e);
    free(m);
    return r;
}

int meg_ckpt_verify(const struct meg_ckpt *c, struct meg_err *e)
{
    struct meg_ckpt optim;
    int r;

    if ((r = verify_files(c, e)) < 0 || (r = ckpt_open_optim(&optim, c, e)) < 0)
        return r;
    r = verify_files(&optim, e);
    ckpt_close_files(&optim);
    return r;
}
