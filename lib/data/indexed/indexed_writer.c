/*
 * indexed_writer.c - write .bin and .idx in constant memory.  The length of a sequence is written to its final offset
 * in .idx when the next sequence is added, or at the commit.  In .idx, the document index and modes follow the lengths
 * and offsets.  Until the commit, the number of lengths is unknown, so the document index and modes are written to
 * temporary files.  The commit computes the offsets and appends the temporary files to .idx.
 */
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "data/indexed/idx_format.h"
#include "data/indexed/indexed.h"
#include "file/commit.h"
#include "file/file.h"
#include "file/lock.h"

struct meg_indexed_writer {
    char *prefix;
    struct meg_lock lock;
    enum meg_idx_dtype dtype;
    struct meg_file bin, idx;    /* idx: space for the header, then the lengths */
    struct meg_file docs, modes; /* temporary files, never committed; modes is { 0 } if the dataset has none */
    int64_t nseq, ndoc_entries;  /* number of sequences, and of entries in the document index */
    int32_t last_length;         /* tokens of the sequence appended last, which meg_indexed_extend may lengthen */
    int64_t nseq_ended;          /* number of sequences in the ended documents */
    atomic_int index_status;     /* 0, or code of the first failure to write a part of .idx (see index_err) */
    struct meg_err index_err;
};

static char *concat(const char *prefix, const char *ext)
{
    struct meg_str s = { 0 };
    meg_str_printf(&s, "%s%s", prefix, ext);
    return s.s;
}

static int create(struct meg_file *f, const char *prefix, const char *ext, struct meg_err *e)
{
    char *path = concat(prefix, ext);
    int r = meg_file_create(f, path, e);

    free(path);
    return r;
}

/* Write to a part of the index and record a failure, which check_index returns later. */
static void write_index_part(struct meg_indexed_writer *w, struct meg_file *f, const void *v, size_t n)
{
    int r;

    if (w->index_status == 0 && (r = meg_file_write(f, v, n, &w->index_err)) < 0)
        w->index_status = r;
}

static int check_index(struct meg_indexed_writer *w, struct meg_err *e)
{
    int r = w->index_status;

    return r < 0 ? meg_fail(e, r, "%s", w->index_err.msg) : 0;
}

static bool has_modes(const struct meg_indexed_writer *w)
{
    return w->modes.tmp != NULL;
}

static void add_document(struct meg_indexed_writer *w, int64_t end)
{
    write_index_part(w, &w->docs, &end, sizeof end);
    w->ndoc_entries++;
    w->nseq_ended = end;
}

static int lock(struct meg_indexed_writer *w, struct meg_err *e)
{
    char *path = concat(w->prefix, ".lock");
    int r = meg_lock_acquire(&w->lock, path, w->prefix, e);

    free(path);
    return r;
}

int meg_indexed_create(struct meg_indexed_writer **out, const char *prefix, enum meg_idx_dtype dtype, struct meg_err *e)
{
    struct meg_indexed_writer *w = meg_new(sizeof *w);
    int r;

    w->prefix = meg_strdup(prefix);
    w->dtype = dtype;
    if ((r = lock(w, e)) < 0 || (r = create(&w->bin, prefix, ".bin", e)) < 0 ||
        (r = create(&w->idx, prefix, ".idx", e)) < 0 || (r = create(&w->docs, prefix, ".idx.documents", e)) < 0)
        goto out;
    w->idx.buf_offset = MEG_IDX_HEADER;
    add_document(w, 0);
    *out = w;
    w = NULL;
out:
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

enum { IDS = 16 }; /* ids per vector */
typedef int32_t ids_vec __attribute__((vector_size(IDS * 4)));
typedef uint16_t u16_vec __attribute__((vector_size(IDS * 2)));

/* Return the bitwise OR of all ids. */
static int32_t or_bits(const int32_t *ids, int64_t n)
{
    ids_vec all = { 0 }, v;
    int32_t bits = 0;

    for (; n >= IDS; ids += IDS, n -= IDS) {
        memcpy(&v, ids, sizeof v);
        all |= v;
    }
    for (int k = 0; k < IDS; k++)
        bits |= all[k];
    for (int64_t i = 0; i < n; i++)
        bits |= ids[i];
    return bits;
}

static int check_ids(const struct meg_indexed_writer *w, const int32_t *ids, int64_t n, struct meg_err *e)
{
    const int64_t lo = range[w->dtype].lo, hi = range[w->dtype].hi;
    const int32_t bits = or_bits(ids, n);

    if (bits >= 0 && bits <= hi)
        return 0;
    for (int64_t i = 0; i < n; i++) {
        if (ids[i] < lo || ids[i] > hi)
            return meg_fail(e, MEG_EFORMAT,
                            "%s.bin: token id %" PRId32 " is out of the range of %s, %" PRId64 " to %" PRId64,
                            w->prefix, ids[i], meg_idx_dtype_name(w->dtype), lo, hi);
    }
    return 0;
}

/*
 * Convert each id to an integer of `size` bytes.  The integer is the first `size` bytes of the id as int64, because meg
 * requires a little-endian CPU.  `to` may be the array `ids` if `size` is at most 4.
 */
static void convert(const int32_t *ids, int64_t n, size_t size, char *to)
{
    int64_t i = 0;

    for (; size == 2 && n - i >= IDS; i += IDS) { /* the usual token type, uint16 */
        ids_vec v;
        u16_vec low;

        memcpy(&v, ids + i, sizeof v);
        low = __builtin_convertvector(v, u16_vec);
        memcpy(to + 2 * i, &low, sizeof low);
    }
    for (; i < n; i++) {
        int64_t v = ids[i];

        memcpy(to + (size_t)i * size, &v, size);
    }
}

int meg_indexed_convert(const struct meg_indexed_writer *w, const int32_t *ids, int64_t n, void *out, struct meg_err *e)
{
    const size_t size = meg_idx_dtype_size(w->dtype);
    int r = check_ids(w, ids, n, e);

    if (r == 0 && (size != sizeof *ids || out != ids))
        convert(ids, n, size, out);
    return r;
}

/* Write the length of the last sequence, if any, to .idx.  The sequence must not be extended afterwards. */
static void end_sequence(struct meg_indexed_writer *w)
{
    if (w->nseq > 0)
        write_index_part(w, &w->idx, &w->last_length, sizeof w->last_length);
}

static void add_sequence(struct meg_indexed_writer *w, int32_t n)
{
    end_sequence(w);
    w->last_length = n;
    w->nseq++;
}

int64_t meg_indexed_extend(struct meg_indexed_writer *w, int32_t n)
{
    int64_t at = w->bin.buf_offset;

    MEG_ASSERT_EQ(w->bin.nbuf, 0);
    MEG_ASSERT(!has_modes(w));
    MEG_ASSERT_LT(0, w->nseq);
    MEG_ASSERT_LE(n, INT32_MAX - w->last_length);
    w->last_length += n;
    w->bin.buf_offset += n * (int64_t)meg_idx_dtype_size(w->dtype);
    return at;
}

int64_t meg_indexed_reserve(struct meg_indexed_writer *w, int32_t n)
{
    add_sequence(w, 0);
    return meg_indexed_extend(w, n);
}

int meg_indexed_pwrite(struct meg_indexed_writer *w, int64_t at, const void *tokens, int64_t n, struct meg_err *e)
{
    const int64_t nbytes = n * (int64_t)meg_idx_dtype_size(w->dtype);
    int r = check_index(w, e);

    if (r == 0 && (r = meg_file_pwrite(&w->bin, tokens, (size_t)nbytes, at, e)) == 0)
        meg_file_writeback(&w->bin, at, at + nbytes);
    return r;
}

void meg_indexed_end_document(struct meg_indexed_writer *w)
{
    add_document(w, w->nseq);
}

int meg_indexed_append_dataset(struct meg_indexed_writer *w, const struct meg_indexed *d, struct meg_err *e)
{
    int64_t i, n = d->sequences, nd = d->documents, first = w->nseq;
    int r;

    MEG_ASSERT_EQ(w->nseq_ended, w->nseq);
    if (d->dtype != w->dtype)
        return meg_fail(
            e, MEG_EFORMAT,
            "%s.idx: the dtype is %s, but the datasets before it have %s; preprocess all datasets with one vocabulary",
            d->prefix, meg_idx_dtype_name(d->dtype), meg_idx_dtype_name(w->dtype));
    if (first > 0 && n > 0 && d->has_modes != has_modes(w))
        return meg_fail(e, MEG_EFORMAT,
                        "%s.idx: the sequences have %s, but the datasets before it have %s; merge the "
                        "datasets with modes separately",
                        d->prefix, d->has_modes ? "modes" : "no modes", has_modes(w) ? "modes" : "no modes");
    if (n > 0 &&
        (r = meg_file_write(&w->bin, meg_indexed_bytes(d, 0), (size_t)d->tokens * meg_idx_dtype_size(w->dtype), e)) < 0)
        return r;
    if (d->has_modes && !has_modes(w) && (r = create(&w->modes, w->prefix, ".idx.modes", e)) < 0)
        return r;
    for (i = 0; i < n; i++)
        add_sequence(w, meg_indexed_length(d, i));
    for (i = 0; i < n && has_modes(w); i++) {
        int8_t mode = meg_indexed_mode(d, i);

        write_index_part(w, &w->modes, &mode, 1);
    }
    for (i = 1; i <= nd; i++)
        add_document(w, first + meg_indexed_document(d, i));
    return check_index(w, e);
}

enum { CHUNK = 1 << 16 }; /* number of lengths or bytes copied at a time */

/* Append the offsets to .idx: the byte offset of each sequence in .bin. */
static int write_offsets(struct meg_indexed_writer *w, struct meg_err *e)
{
    const int64_t size = (int64_t)meg_idx_dtype_size(w->dtype);
    int32_t *length = meg_realloc_array(NULL, CHUNK, sizeof *length);
    int64_t off = 0;
    int r = 0;

    for (int64_t i = 0, n; i < w->nseq && r == 0; i += n) {
        n = w->nseq - i < CHUNK ? w->nseq - i : CHUNK;
        r = meg_file_pread(&w->idx, length, (size_t)n * sizeof *length, MEG_IDX_HEADER + 4 * i, e);
        for (int64_t k = 0; k < n && r == 0; k++) {
            r = meg_file_write(&w->idx, &off, sizeof off, e);
            off += length[k] * size;
        }
    }
    free(length);
    return r;
}

/* Append the n bytes of a temporary file to .idx. */
static int copy(struct meg_indexed_writer *w, struct meg_file *from, int64_t n, struct meg_err *e)
{
    char *bytes = meg_new(CHUNK);
    int r = 0;

    for (int64_t at = 0, k; at < n && r == 0; at += k) {
        k = n - at < CHUNK ? n - at : CHUNK;
        if ((r = meg_file_pread(from, bytes, (size_t)k, at, e)) == 0)
            r = meg_file_write(&w->idx, bytes, (size_t)k, e);
    }
    free(bytes);
    return r;
}

static int write_index(struct meg_indexed_writer *w, struct meg_err *e)
{
    unsigned char h[MEG_IDX_HEADER] = MEG_IDX_MAGIC;
    int r;

    h[9] = 1;
    h[17] = (unsigned char)w->dtype;
    memcpy(h + 18, &w->nseq, 8);
    memcpy(h + 26, &w->ndoc_entries, 8);
    end_sequence(w);
    if ((r = check_index(w, e)) < 0 || (r = write_offsets(w, e)) < 0 ||
        (r = copy(w, &w->docs, 8 * w->ndoc_entries, e)) < 0 ||
        (has_modes(w) && (r = copy(w, &w->modes, w->nseq, e)) < 0))
        return r;
    return meg_file_pwrite(&w->idx, h, sizeof h, 0, e);
}

int meg_indexed_commit(struct meg_indexed_writer *w[], int n, struct meg_err *e)
{
    struct meg_file **file = meg_new(2 * (size_t)n * sizeof *file);
    int r = 0;

    for (int i = 0; i < n && r == 0; i++) {
        if ((r = write_index(w[i], e)) == 0)
            r = meg_lock_check(&w[i]->lock, e);
        file[i] = &w[i]->bin;
        file[n + i] = &w[i]->idx; /* readers open .idx first: rename it last */
    }
    if (r == 0)
        r = meg_commit_files(file, 2 * n, e);
    for (int i = 0; i < n && r == 0; i++) {
        meg_indexed_abandon(w[i]);
        w[i] = NULL;
    }
    free(file);
    return r;
}

void meg_indexed_abandon(struct meg_indexed_writer *w)
{
    if (!w)
        return;
    meg_file_abandon(&w->bin);
    meg_file_abandon(&w->idx);
    meg_file_abandon(&w->docs);
    meg_file_abandon(&w->modes);
    meg_lock_release(&w->lock);
    free(w->prefix);
    free(w);
}
