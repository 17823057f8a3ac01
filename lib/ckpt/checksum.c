/* Checksums of tensors, a chunk at a time: held against the manifest when they are read. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "ckpt/internal.h"
#include "ckpt/megatron/zip.h"
#include "io/json.h"

void ckpt_add_chunks(struct ckpt_chunk **chunk, int64_t *nchunks, const struct meg_st_tensor *t, int n)
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

            *c++ = (struct ckpt_chunk){ &t[i], at, left < CKPT_CHUNK ? left : CKPT_CHUNK };
            at += CKPT_CHUNK;
        } while (at < t[i].nbytes);
    }
    *nchunks += more;
}

/* A chunk of a mapped tensor and what its checksum has to be. */
struct known {
    const struct ckpt_mapped_tensor *m;
    struct ckpt_chunk c;
    int64_t i, n;     /* number i of the tensor's n */
    const char *want; /* NULL: the manifest does not say */
};

static int list_known(struct known **out, int64_t *nout, const json_t *manifest, const struct ckpt_mapped_tensor *m,
                      int n, struct meg_err *e)
{
    for (int i = 0; i < n; i++) {
        const json_t *sums = json_object_get(json_object_get(manifest, m[i].t->name), "xxh3_128");
        struct ckpt_chunk *c = NULL;
        int64_t nchunks = 0;

        ckpt_add_chunks(&c, &nchunks, m[i].t, 1);
        if ((int64_t)json_array_size(sums) != nchunks) {
            free(c);
            return meg_fail(e, MEG_EFORMAT,
                            "%s: tensor %s: manifest.json has %zu checksums of it, its %" PRId64 " bytes have %" PRId64,
                            m[i].st->path, m[i].t->name, json_array_size(sums), m[i].t->nbytes, nchunks);
        }
        *out = meg_realloc_array(*out, (size_t)(*nout + nchunks), sizeof **out);
        for (int64_t k = 0; k < nchunks; k++)
            (*out)[(*nout)++] =
                (struct known){ &m[i], c[k], k, nchunks, json_string_value(json_array_get(sums, (size_t)k)) };
        free(c);
    }
    return 0;
}

static int check(const struct known *k, struct meg_err *e)
{
    const struct meg_st_tensor *t = k->m->t;
    char hash[33];
    void *block;
    const char *data = meg_st_data(t, &block);

    if (!data)
        return meg_fail(e, MEG_EFAIL, "%s: no memory to check %s", k->m->st->path, t->name);
    meg_xxh3_128_hex(hash, data + k->c.first, (size_t)k->c.n);
    free(block);
    if (k->want && !strcmp(k->want, hash))
        return 0;
    return meg_fail(e, MEG_EFORMAT,
                    "%s: tensor %s, chunk %" PRId64 " of %" PRId64 " (bytes %" PRId64 " to %" PRId64
                    " of the file): checksum %s, manifest.json says %s; the file is damaged: copy it again, "
                    "or load another iteration with --ckpt-step",
                    k->m->st->path, t->name, k->i, k->n, t->file_offset + k->c.first,
                    t->file_offset + k->c.first + k->c.n, hash, k->want ? k->want : "nothing");
}

/* What lies in a container with checksums of its own. */
static int check_stored(const struct ckpt_mapped_tensor *m, struct meg_err *e)
{
    const uint32_t crc = m->t->container_data ? meg_zip_crc(m->t->container_data, m->t->container_nbytes) : 0;

    if (!m->t->container_data || crc == m->t->crc)
        return 0;
    return meg_fail(e, MEG_EFORMAT,
                    "%s: tensor %s: CRC-32 %08x, the container says %08x; the file is damaged: copy it again",
                    m->st->path, m->t->name, crc, m->t->crc);
}

static int check_all_stored(const struct ckpt_mapped_tensor *m, int n, int rank, int ranks, struct meg_err *e)
{
    int r = 0;

#pragma omp parallel for schedule(dynamic)
    for (int i = rank; i < n; i += ranks) {
        struct meg_err mine;

        if (check_stored(&m[i], &mine) < 0) {
#pragma omp critical(ckpt_check)
            {
                r = mine.code;
                if (e)
                    *e = mine;
            }
        }
    }
    return r;
}

int ckpt_verify_checksums(const json_t *manifest, const struct ckpt_mapped_tensor *m, int n, int rank, int ranks,
                          struct meg_err *e)
{
    struct known *known = NULL;
    int64_t nknown = 0;
    int r;

    if (!manifest)
        return check_all_stored(m, n, rank, ranks, e);
    if ((r = list_known(&known, &nknown, manifest, m, n, e)) < 0)
        goto out;
#pragma omp parallel for schedule(dynamic)
    for (int64_t i = rank; i < nknown; i += ranks) {
        struct meg_err mine;

        if (check(&known[i], &mine) < 0) {
#pragma omp critical(ckpt_check)
            {
                r = mine.code;
                if (e)
                    *e = mine;
            }
        }
    }
out:
    free(known);
    return r;
}
