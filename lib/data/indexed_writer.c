/* Writing .bin/.idx: .bin streams out, .idx is made at the end. */
#include "data/indexed.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "data/internal.h"

struct meg_indexed_writer {
    char *prefix;
    enum meg_idx_dtype dtype;
    struct meg_file bin;
    int32_t *lengths;
    int8_t *modes; /* NULL, or one a sequence */
    int64_t nseq, lengths_cap, modes_cap;
    int64_t *docs; /* document index entries: docs[0] = 0 */
    int64_t nent, docs_cap;
};

static char *named(const char *prefix, const char *ext)
{
    struct meg_str s = { 0 };
    meg_str_printf(&s, "%s%s", prefix, ext);
    return s.s;
}

static void *grown(void *p, int64_t n, int64_t *cap, size_t size)
{
    if (n <= *cap)
        return p;
    *cap = n > 2 * *cap ? n + 1024 : 2 * *cap;
    return meg_realloc_array(p, (size_t)*cap, size);
}

int meg_indexed_create(struct meg_indexed_writer **out, const char *prefix,
                       enum meg_idx_dtype dtype, struct meg_err *e)
{
    struct meg_indexed_writer *w = meg_new(sizeof *w);
    char *path = named(prefix, ".bin");
    int r;

    w->prefix = meg_strdup(prefix);
    w->dtype = dtype;
    w->docs = grown(NULL, 1, &w->docs_cap, sizeof *w->docs);
    w->docs[w->nent++] = 0;
    if ((r = meg_file_create(&w->bin, path, e)) < 0)
        goto out;
    *out = w;
    w = NULL;
out:
    free(path);
    meg_indexed_abandon(w);
    return r;
}

static const struct {
    int64_t lo, hi;
} range[] = {
    [MEG_IDX_U8] = { 0, UINT8_MAX },          [MEG_IDX_I8] = { INT8_MIN, INT8_MAX },
    [MEG_IDX_I16] = { INT16_MIN, INT16_MAX }, [MEG_IDX_U16] = { 0, UINT16_MAX },
    [MEG_IDX_I32] = { INT32_MIN, INT32_MAX }, [MEG_IDX_I64] = { INT64_MIN, INT64_MAX },
};

static int check_ids(const struct meg_indexed_writer *w, const int32_t *ids, int64_t n,
                     struct meg_err *e)
{
    const int64_t lo = range[w->dtype].lo, hi = range[w->dtype].hi;
    int32_t bits = 0;

    for (int64_t i = 0; i < n; i++)
        bits |= ids[i];
    if (bits >= 0 && bits <= hi)
        return 0;
    for (int64_t i = 0; i < n; i++) {
        if (ids[i] < lo || ids[i] > hi)
            return meg_fail(e, MEG_EFORMAT,
                            "%s.bin: token id %" PRId32 " does not fit %s; the vocabulary "
                            "is larger than was said",
                            w->prefix, ids[i], meg_idx_dtype_name(w->dtype));
    }
    return 0;
}

/* Little-endian machines only, as all of libmeg: the low bytes of an id come first. */
int meg_indexed_narrow(const struct meg_indexed_writer *w, const int32_t *ids, int64_t n, void *out,
                       struct meg_err *e)
{
    const size_t size = meg_idx_dtype_size(w->dtype);
    char *to = out;
    int r = check_ids(w, ids, n, e);

    if (r < 0 || (size == sizeof *ids && out == ids))
        return r;
    if (size == 2) /* what nearly every vocabulary asks for */
        for (int64_t i = 0; i < n; i++)
            memcpy(to + 2 * i, &ids[i], 2);
    else
        for (int64_t i = 0; i < n; i++) {
            int64_t v = ids[i];

            memcpy(to + (size_t)i * size, &v, size);
        }
    return 0;
}

static void add_length(struct meg_indexed_writer *w, int64_t n)
{
    w->lengths = grown(w->lengths, w->nseq + 1, &w->lengths_cap, sizeof *w->lengths);
    w->lengths[w->nseq++] = (int32_t)n;
}

int64_t meg_indexed_extend(struct meg_indexed_writer *w, int32_t n)
{
    int64_t at = w->bin.end;

    MEG_ASSERT(w->bin.nbuf == 0 && !w->modes && w->nseq > 0 &&
               n <= INT32_MAX - w->lengths[w->nseq - 1]);
    w->lengths[w->nseq - 1] += n;
    w->bin.end += n * (int64_t)meg_idx_dtype_size(w->dtype);
    return at;
}

int64_t meg_indexed_claim(struct meg_indexed_writer *w, int32_t n)
{
    add_length(w, 0);
    return meg_indexed_extend(w, n);
}

int meg_indexed_put(struct meg_indexed_writer *w, int64_t at, const void *tokens, int64_t n,
                    struct meg_err *e)
{
    return meg_file_pwrite(&w->bin, tokens, (size_t)n * meg_idx_dtype_size(w->dtype), at, e);
}

int meg_indexed_append(struct meg_indexed_writer *w, const int32_t *ids, int64_t n,
                       struct meg_err *e)
{
    const size_t size = meg_idx_dtype_size(w->dtype);
    void *tokens;
    int r;

    MEG_ASSERT(w->dtype != MEG_IDX_F32 && w->dtype != MEG_IDX_F64 && !w->modes);
    if (n > INT32_MAX)
        return meg_fail(e, MEG_EFORMAT,
                        "%s.bin: a sequence of %" PRId64 " tokens, the format holds %d", w->prefix,
                        n, INT32_MAX);
    tokens = meg_realloc_array(NULL, (size_t)n, size);
    if ((r = meg_indexed_narrow(w, ids, n, tokens, e)) == 0 &&
        (r = meg_file_write(&w->bin, tokens, (size_t)n * size, e)) == 0)
        add_length(w, n);
    free(tokens);
    return r;
}

void meg_indexed_end_document(struct meg_indexed_writer *w)
{
    w->docs = grown(w->docs, w->nent + 1, &w->docs_cap, sizeof *w->docs);
    w->docs[w->nent++] = w->nseq;
}

int meg_indexed_append_dataset(struct meg_indexed_writer *w, const struct meg_indexed *d,
                               struct meg_err *e)
{
    int64_t i, n = meg_indexed_sequences(d), nd = meg_indexed_documents(d), first = w->nseq;
    int r;

    MEG_ASSERT(w->docs[w->nent - 1] == w->nseq);
    if (meg_indexed_dtype(d) != w->dtype)
        return meg_fail(e, MEG_EFORMAT,
                        "%s.idx: tokens are %s, those before it %s; "
                        "preprocess both with one vocabulary",
                        meg_indexed_prefix(d), meg_idx_dtype_name(meg_indexed_dtype(d)),
                        meg_idx_dtype_name(w->dtype));
    if (first > 0 && n > 0 && meg_indexed_has_modes(d) != (w->modes != NULL))
        return meg_fail(e, MEG_EFORMAT, "%s.idx: %s, those before it %s", meg_indexed_prefix(d),
                        meg_indexed_has_modes(d) ? "has modes" : "has no modes",
                        w->modes ? "have them" : "have none");
    if (n > 0 &&
        (r = meg_file_write(&w->bin, meg_indexed_bytes(d, 0),
                            (size_t)meg_indexed_tokens(d) * meg_idx_dtype_size(w->dtype), e)) < 0)
        return r;
    w->lengths = grown(w->lengths, first + n, &w->lengths_cap, sizeof *w->lengths);
    for (i = 0; i < n; i++)
        w->lengths[first + i] = meg_indexed_length(d, i);
    if (meg_indexed_has_modes(d)) {
        w->modes = grown(w->modes, first + n, &w->modes_cap, 1);
        for (i = 0; i < n; i++)
            w->modes[first + i] = meg_indexed_mode(d, i);
    }
    w->nseq += n;
    w->docs = grown(w->docs, w->nent + nd, &w->docs_cap, sizeof *w->docs);
    for (i = 1; i <= nd; i++)
        w->docs[w->nent++] = first + meg_indexed_document(d, i);
    return 0;
}

static int write_index(struct meg_indexed_writer *w, struct meg_file *f, struct meg_err *e)
{
    int64_t size = (int64_t)meg_idx_dtype_size(w->dtype), off = 0, i;
    unsigned char h[MEG_IDX_HEADER] = MEG_IDX_MAGIC;
    int r;

    h[9] = 1;
    h[17] = (unsigned char)w->dtype;
    memcpy(h + 18, &w->nseq, 8);
    memcpy(h + 26, &w->nent, 8);
    if ((r = meg_file_write(f, h, sizeof h, e)) < 0 ||
        (r = meg_file_write(f, w->lengths, 4 * (size_t)w->nseq, e)) < 0)
        return r;
    for (i = 0; i < w->nseq; i++) {
        if ((r = meg_file_write(f, &off, 8, e)) < 0)
            return r;
        off += w->lengths[i] * size;
    }
    if ((r = meg_file_write(f, w->docs, 8 * (size_t)w->nent, e)) < 0)
        return r;
    return w->modes ? meg_file_write(f, w->modes, (size_t)w->nseq, e) : 0;
}

static ino_t inode(const char *path)
{
    struct stat st;
    return stat(path, &st) < 0 ? 0 : st.st_ino;
}

/*
 * All bytes are on the disk before a name changes hands.  An older .idx speaks of the older .bin: it
 * stands aside before the new .bin comes, and is put back when that does not come.
 */
int meg_indexed_commit(struct meg_indexed_writer **wp, struct meg_err *e)
{
    struct meg_indexed_writer *w = *wp;
    struct meg_file idx = { 0 };
    char *path = named(w->prefix, ".idx"), *bin = named(w->prefix, ".bin"),
         *aside = named(w->prefix, ".idx.tmp.old");
    const ino_t older = inode(bin);
    int r;

    if ((r = meg_file_create(&idx, path, e)) < 0 || (r = write_index(w, &idx, e)) < 0 ||
        (r = meg_file_sync(&idx, e)) < 0 || (r = meg_file_sync(&w->bin, e)) < 0)
        goto out;
    if (rename(path, aside) < 0 && errno != ENOENT) {
        r = meg_fail_errno(e, "%s: renaming", path);
        goto out;
    }
    if ((r = meg_file_commit(&w->bin, e)) < 0 && inode(bin) == older) {
        rename(aside, path);
        goto out;
    }
    if (r < 0 || (r = meg_file_commit(&idx, e)) < 0) {
        unlink(path);
        unlink(bin);
    }
    unlink(aside);
    if (r == 0) {
        meg_indexed_abandon(w);
        *wp = NULL;
    }
out:
    meg_file_abandon(&idx);
    free(path);
    free(bin);
    free(aside);
    return r;
}

void meg_indexed_abandon(struct meg_indexed_writer *w)
{
    if (!w)
        return;
    meg_file_abandon(&w->bin);
    free(w->prefix);
    free(w->lengths);
    free(w->modes);
    free(w->docs);
    free(w);
}
