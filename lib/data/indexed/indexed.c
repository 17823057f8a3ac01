/* indexed.c - read .bin and .idx.  The arrays of .idx may be unaligned, so their values are loaded with memcpy. */
#include "data/indexed/indexed.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/log.h"
#include "base/mem.h"
#include "base/num.h"
#include "data/indexed/idx_format.h"
#include "data/indexed/legacy_index.h"
#include "foreign/foreign.h"

static const struct {
    const char *name;
    size_t size;
} types[] = {
    [MEG_IDX_U8] = { "uint8", 1 },    [MEG_IDX_I8] = { "int8", 1 },    [MEG_IDX_I16] = { "int16", 2 },
    [MEG_IDX_I32] = { "int32", 4 },   [MEG_IDX_I64] = { "int64", 8 },  [MEG_IDX_F64] = { "float64", 8 },
    [MEG_IDX_F32] = { "float32", 4 }, [MEG_IDX_U16] = { "uint16", 2 },
};

const char *meg_idx_dtype_name(enum meg_idx_dtype t)
{
    return types[t].name;
}

size_t meg_idx_dtype_size(enum meg_idx_dtype t)
{
    return types[t].size;
}

enum meg_idx_dtype meg_idx_dtype_for_vocab(int64_t vocab_size)
{
    return vocab_size < 65500 ? MEG_IDX_U16 : MEG_IDX_I32;
}

static int32_t load_i32(const unsigned char *p, int64_t i)
{
    int32_t v;
    memcpy(&v, p + 4 * i, 4);
    return v;
}

static int64_t load_i64(const unsigned char *p, int64_t i)
{
    int64_t v;
    memcpy(&v, p + 8 * i, 8);
    return v;
}

static uint64_t load_u64(const unsigned char *p)
{
    uint64_t v;
    memcpy(&v, p, 8);
    return v;
}

static int32_t length(const struct meg_indexed *d, int64_t seq)
{
    return d->is_legacy ? (int32_t)load_i64(d->lengths, seq) : load_i32(d->lengths, seq);
}

/* Return the offset of a sequence in .bin, in bytes. */
static int64_t offset_of(const struct meg_indexed *d, int64_t seq)
{
    return load_i64(d->offsets, seq) * (d->is_legacy ? (int64_t)d->size : 1);
}

static int fail_no_documents(const struct meg_indexed *d, int at, struct meg_err *e)
{
    return meg_fail(e, MEG_EFORMAT,
                    "%s.idx: the number of document index entries, at byte %d, is 0; expected at least 1", d->prefix,
                    at);
}

/* Parse an index file of n bytes at h, in the current (not the legacy) format. */
static int read_header(struct meg_indexed *d, const unsigned char *h, size_t n, struct meg_err *e)
{
    const char *p = d->prefix;
    uint64_t nseq, ndoc_entries, bytes_left, want;

    if (n < MEG_IDX_HEADER)
        return meg_fail(e, MEG_EFORMAT,
                        "%s.idx: %zu bytes, expected at least %d, the size of the header; the file is truncated or is "
                        "not the index of an indexed dataset",
                        p, n, MEG_IDX_HEADER);
    if (memcmp(h, MEG_IDX_MAGIC, 9) != 0)
        return meg_fail(e, MEG_EFORMAT,
                        "%s.idx: the file does not begin with MMIDIDX, so it is not the index of an indexed dataset",
                        p);
    if (load_u64(h + 9) != 1)
        return meg_fail(e, MEG_EFORMAT, "%s.idx: version %" PRIu64 ", expected 1", p, load_u64(h + 9));
    if (h[17] < MEG_IDX_U8 || h[17] > MEG_IDX_U16)
        return meg_fail(e, MEG_EFORMAT, "%s.idx: dtype code %d at byte 17, expected 1 to 8", p, h[17]);
    nseq = load_u64(h + 18);
    ndoc_entries = load_u64(h + 26);
    bytes_left = n - MEG_IDX_HEADER;
    if (ndoc_entries < 1)
        return fail_no_documents(d, 26, e);
    if (nseq > bytes_left / 12 || ndoc_entries > bytes_left / 8 || 12 * nseq + 8 * ndoc_entries > bytes_left)
        return meg_fail(e, MEG_EFORMAT,
                        "%s.idx: %zu bytes, expected %.0f for %" PRIu64 " sequences and %" PRIu64
                        " document index entries; the file is truncated",
                        p, n, MEG_IDX_HEADER + 12 * (double)nseq + 8 * (double)ndoc_entries, nseq, ndoc_entries);
    want = MEG_IDX_HEADER + 12 * nseq + 8 * ndoc_entries;
    if (n != want && n != want + nseq)
        return meg_fail(e, MEG_EFORMAT,
                        "%s.idx: %zu bytes, expected %" PRIu64 " for %" PRIu64 " sequences and %" PRIu64
                        " document index entries, or %" PRIu64 " if the sequences have modes",
                        p, n, want, nseq, ndoc_entries, want + nseq);
    d->dtype = h[17];
    d->size = types[d->dtype].size;
    d->sequences = (int64_t)nseq;
    d->documents = (int64_t)ndoc_entries - 1;
    d->lengths = h + MEG_IDX_HEADER;
    d->offsets = d->lengths + 4 * nseq;
    d->docs = d->offsets + 8 * nseq;
    d->has_modes = n != want;
    d->modes = d->docs + 8 * ndoc_entries;
    return 0;
}

static int check_arrays(struct meg_indexed *d, struct meg_err *e)
{
    const char *p = d->prefix;
    int64_t i, off = 0, prev = 0;

    for (i = 0; i < d->sequences; i++) {
        int32_t n = length(d, i);
        if (n < 0)
            return meg_fail(e, MEG_EFORMAT, "%s.idx: sequence %" PRId64 " has length %" PRId32 ", expected at least 0",
                            p, i, n);
        if (offset_of(d, i) != off)
            return meg_fail(e, MEG_EFORMAT,
                            "%s.idx: sequence %" PRId64 " starts at byte %" PRId64
                            " of .bin, but the sequences before it end at byte %" PRId64,
                            p, i, offset_of(d, i), off);
        off += n * (int64_t)d->size;
    }
    d->tokens = off / (int64_t)d->size;
    for (i = 0; i <= d->documents; i++) {
        int64_t s = load_i64(d->docs, i);
        if (i == 0 ? s != 0 : s < prev)
            return meg_fail(e, MEG_EFORMAT,
                            "%s.idx: document %" PRId64 " starts at sequence %" PRId64 ", expected %s %" PRId64, p, i,
                            s, i ? "at least" : "sequence", prev);
        prev = s;
    }
    if (prev != d->sequences)
        return meg_fail(e, MEG_EFORMAT, "%s.idx: the document index ends at sequence %" PRId64 ", expected %" PRId64, p,
                        prev, d->sequences);
    if (d->bin.n < (uint64_t)off)
        return meg_fail(e, MEG_EFORMAT,
                        "%s.bin: %zu bytes, expected %" PRId64 " for the %" PRId64 " %s "
                        "tokens of %s.idx; the file is truncated or belongs to another index",
                        p, d->bin.n, off, d->tokens, types[d->dtype].name, p);
    if (d->bin.n > (uint64_t)off)
        meg_warn("%s.bin: %zu bytes, but the index uses only %" PRId64 "; ignoring the rest", p, d->bin.n, off);
    return 0;
}

static int read_index(struct meg_indexed *d, struct meg_err *e)
{
    struct meg_legacy_index l;
    int r;

    if (!meg_legacy_index_detect(d->idx.p, d->idx.n))
        return read_header(d, d->idx.p, d->idx.n, e);
    if ((r = meg_legacy_index_read(&l, d->prefix, d->idx.p, d->idx.n, e)) < 0)
        return r;
    if (l.entries < 1)
        return fail_no_documents(d, 48, e);
    d->is_legacy = true;
    d->dtype = (enum meg_idx_dtype)l.dtype;
    d->size = types[d->dtype].size;
    d->sequences = l.sequences;
    d->documents = l.entries - 1;
    d->lengths = l.sizes;
    d->offsets = l.offsets;
    d->docs = l.docs;
    return 0;
}

static bool has_suffix(const char *s, const char *end)
{
    const size_t n = strlen(s), m = strlen(end);

    return n >= m && strcmp(s + n - m, end) == 0;
}

/* Describe a path that was given instead of the name of a dataset. */
static int refuse_path(const char *path, bool is_dir, const char *missing, struct meg_err *e)
{
    if (is_dir)
        return meg_fail(e, MEG_ENOENT,
                        "%s: found a directory, expected a token dataset; give the name of a .bin file in it, without "
                        ".bin",
                        path);
    if (meg_foreign_check_path(path, MEG_EXPECT_JSON_LINES, e) < 0)
        return MEG_EFORMAT;
    return meg_fail(e, MEG_ENOENT,
                    "%s: no such file; %s is not a dataset; convert text to a dataset with meg-preprocess(1)", missing,
                    path);
}

/*
 * Replace the message for a missing file by one that suggests a correction, if the cause can be guessed.  Return the
 * code of the error.
 */
static int suggest_prefix(const char *prefix, const char *missing, struct meg_err *e)
{
    struct meg_str guess = { 0 };
    struct stat st;
    double weight;
    int r = MEG_ENOENT;

    meg_str_printf(&guess, "%s_text_document.idx", prefix);
    if (has_suffix(prefix, ".idx") || has_suffix(prefix, ".bin"))
        meg_fail(e, MEG_ENOENT, "%s: specify the dataset without .bin and .idx", prefix);
    else if (access(guess.s, F_OK) == 0)
        meg_fail(e, MEG_ENOENT, "%s: no such file; did you mean %s_text_document?", missing, prefix);
    else if (stat(prefix, &st) == 0)
        r = refuse_path(prefix, S_ISDIR(st.st_mode), missing, e);
    else if (meg_parse_f64(prefix, &weight))
        meg_fail(e, MEG_ENOENT, "%s: no such file; if %s is a weight, specify a weight before every dataset", missing,
                 prefix);
    meg_str_free(&guess);
    return r;
}

/*
 * Explain why .idx is invalid by its content.  The content of .bin is not examined: token ids below 128 look like
 * UTF-16 or UTF-32.
 */
static int explain_index(int r, const struct meg_indexed *d, struct meg_err *e)
{
    struct meg_str path = { 0 };

    meg_str_printf(&path, "%s.idx", d->prefix);
    r = meg_foreign_explain(r, path.s, d->idx.p, d->idx.n, MEG_EXPECT_DATASET, e);
    meg_str_free(&path);
    return r;
}

static int map_pair(struct meg_mmap *m, const char *prefix, const char *ext, struct meg_err *e)
{
    struct meg_str path = { 0 };
    int r;
    meg_str_printf(&path, "%s%s", prefix, ext);
    r = meg_mmap_open(m, path.s, e);
    if (r == MEG_ENOENT)
        r = suggest_prefix(prefix, path.s, e);
    meg_str_free(&path);
    return r;
}

int meg_indexed_open(struct meg_indexed **out, const char *prefix, struct meg_err *e)
{
    struct meg_indexed *d = meg_new(sizeof *d);
    int r;

    d->prefix = meg_strdup(prefix);
    if ((r = map_pair(&d->idx, prefix, ".idx", e)) < 0 || (r = map_pair(&d->bin, prefix, ".bin", e)) < 0 ||
        (r = explain_index(read_index(d, e), d, e)) < 0 || (r = check_arrays(d, e)) < 0)
        goto out;
    *out = d;
    d = NULL;
out:
    meg_indexed_close(d);
    return r;
}

void meg_indexed_close(struct meg_indexed *d)
{
    if (!d)
        return;
    meg_mmap_close(&d->idx);
    meg_mmap_close(&d->bin);
    free(d->prefix);
    free(d);
}

int32_t meg_indexed_length(const struct meg_indexed *d, int64_t seq)
{
    MEG_ASSERT(seq >= 0 && seq < d->sequences);
    return length(d, seq);
}

int64_t meg_indexed_document(const struct meg_indexed *d, int64_t doc)
{
    MEG_ASSERT(doc >= 0 && doc <= d->documents);
    return load_i64(d->docs, doc);
}

int8_t meg_indexed_mode(const struct meg_indexed *d, int64_t seq)
{
    MEG_ASSERT(d->has_modes && seq >= 0 && seq < d->sequences);
    return (int8_t)d->modes[seq];
}

const unsigned char *meg_indexed_bytes(const struct meg_indexed *d, int64_t seq)
{
    MEG_ASSERT(seq >= 0 && seq < d->sequences);
    return d->bin.p + offset_of(d, seq);
}

#define CONVERT_IDS(type)                                                                                              \
    for (i = 0; i < n; i++) {                                                                                          \
        type id;                                                                                                       \
        memcpy(&id, p + i * (int64_t)sizeof id, sizeof id);                                                            \
        out[i] = id;                                                                                                   \
    }                                                                                                                  \
    return 0

int meg_indexed_get(const struct meg_indexed *d, int64_t seq, int64_t offset, int64_t n, int32_t *out,
                    struct meg_err *e)
{
    const unsigned char *p;
    int64_t i, v;

    MEG_ASSERT(seq >= 0 && seq < d->sequences && offset >= 0 && n >= 0 && offset + n <= length(d, seq));
    p = d->bin.p + offset_of(d, seq) + offset * (int64_t)d->size;
    switch (d->dtype) {
    case MEG_IDX_U8: CONVERT_IDS(uint8_t);
    case MEG_IDX_I8: CONVERT_IDS(int8_t);
    case MEG_IDX_I16: CONVERT_IDS(int16_t);
    case MEG_IDX_U16: CONVERT_IDS(uint16_t);
    case MEG_IDX_I32: memcpy(out, p, (size_t)n * 4); return 0;
    case MEG_IDX_I64:
        for (i = 0; i < n; i++) {
            v = load_i64(p, i);
            if (v != (int32_t)v)
                return meg_fail(e, MEG_EFORMAT,
                                "%s.bin: token %" PRId64 " of sequence %" PRId64 " is %" PRId64
                                ", out of the range of int32",
                                d->prefix, offset + i, seq, v);
            out[i] = (int32_t)v;
        }
        return 0;
    default:
        return meg_fail(e, MEG_EFORMAT, "%s.idx: the dtype of tokens is %s, expected an integer type", d->prefix,
                        types[d->dtype].name);
    }
}
