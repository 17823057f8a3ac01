/* legacy_index.c - the index format of Megatron-LM's --dataset-impl lazy and cached; meg-idx(5) documents it. */
#include "data/indexed/legacy_index.h"
#include <inttypes.h>
#include <string.h>
#include "data/indexed/indexed.h"

enum { LEGACY_HEADER = 56 };

static int64_t load_i64(const unsigned char *p, uint64_t i)
{
    int64_t v;
    memcpy(&v, p + 8 * i, 8);
    return v;
}

bool meg_legacy_index_detect(const void *idx, size_t n)
{
    return n >= 6 && memcmp(idx, "TNTIDX", 6) == 0;
}

/*
 * Read and check the six numbers after the magic: version, dtype code, bytes per token, number of sequences, number of
 * sizes (which must equal the number of sequences), number of document index entries.
 */
static int read_header(const char *name, const unsigned char *h, size_t n, uint64_t v[6], struct meg_err *e)
{
    uint64_t nwords;

    if (n < LEGACY_HEADER)
        return meg_fail(e, MEG_EFORMAT,
                        "%s.idx: %zu bytes, expected at least %d, the size of the header; the file is truncated", name,
                        n, LEGACY_HEADER);
    memcpy(v, h + 8, 48);
    if (v[0] != 1)
        return meg_fail(e, MEG_EFORMAT, "%s.idx: version %" PRIu64 " of the legacy format, expected 1", name, v[0]);
    if (v[1] < MEG_IDX_U8 || v[1] > MEG_IDX_U16 || v[2] != meg_idx_dtype_size((enum meg_idx_dtype)v[1]))
        return meg_fail(
            e, MEG_EFORMAT,
            "%s.idx: found dtype code %" PRIu64 " with %" PRIu64
            " bytes per token at byte 16, expected a code from 1 to 8 and the size of this dtype (meg-idx(5))",
            name, v[1], v[2]);
    if (v[3] != v[4])
        return meg_fail(e, MEG_EFORMAT,
                        "%s.idx: found %" PRIu64 " dimension sizes for %" PRIu64
                        " sequences, expected one for each sequence",
                        name, v[4], v[3]);
    nwords = (n - LEGACY_HEADER) / 8;
    if ((n - LEGACY_HEADER) % 8 || v[3] > nwords || v[5] > nwords || 3 * v[3] + 2 + v[5] != nwords)
        return meg_fail(e, MEG_EFORMAT,
                        "%s.idx: %zu bytes, expected %.0f for %" PRIu64 " sequences and %" PRIu64
                        " document index entries",
                        name, n, LEGACY_HEADER + 8 * (3 * (double)v[3] + 2 + (double)v[5]), v[3], v[5]);
    return 0;
}

int meg_legacy_index_read(struct meg_legacy_index *l, const char *name, const void *idx, size_t n, struct meg_err *e)
{
    const unsigned char *h = idx, *dims;
    uint64_t v[6], count;
    int r;

    if ((r = read_header(name, h, n, v, e)) < 0)
        return r;
    count = v[3];
    dims = h + LEGACY_HEADER;
    *l = (struct meg_legacy_index){ .dtype = (int)v[1],
                                    .sequences = (int64_t)count,
                                    .entries = (int64_t)v[5],
                                    .offsets = dims + 8 * (count + 1),
                                    .sizes = dims + 16 * (count + 1),
                                    .docs = dims + 16 * (count + 1) + 8 * count };
    for (uint64_t i = 0; i < count; i++) {
        const int64_t size = load_i64(l->sizes, i), start = load_i64(l->offsets, i);

        if (load_i64(dims, i) != (int64_t)i || load_i64(dims, i + 1) != (int64_t)i + 1 || size != (int32_t)size ||
            size < 0)
            return meg_fail(e, MEG_EFORMAT,
                            "%s.idx: sequence %" PRIu64 " has length %" PRId64 " and dimension offsets %" PRId64
                            " and %" PRId64 "; expected a length from 0 to 2147483647 and offsets %" PRIu64
                            " and %" PRIu64,
                            name, i, size, load_i64(dims, i), load_i64(dims, i + 1), i, i + 1);
        if (start < 0 || start > INT64_MAX / 8)
            return meg_fail(e, MEG_EFORMAT,
                            "%s.idx: sequence %" PRIu64 " starts at token %" PRId64 ", expected 0 to %" PRId64, name, i,
                            start, INT64_MAX / 8);
    }
    return 0;
}
