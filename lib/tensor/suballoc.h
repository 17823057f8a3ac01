/*
 * suballoc.h - a bump allocator, which allocates buffers one after the other from one block of memory.  If base is
 * NULL, the same calls only count bytes.  A memory estimate made this way equals the memory that is later used.
 */
#pragma once
#include "tensor/ops.h"

struct meg_suballoc {
    char *base;
    size_t used;
};

/* Return a buffer of nbytes, aligned to 64 bytes; NULL if base is NULL. */
static inline void *meg_suballoc(struct meg_suballoc *c, size_t nbytes)
{
    void *p = c->base ? c->base + c->used : NULL;
    c->used += (nbytes + 63) & ~(size_t)63;
    return p;
}

/* Return a matrix without row padding (ld = cols). */
static inline struct meg_mat meg_mat(void *p, enum meg_dtype dtype, int64_t rows, int64_t cols)
{
    struct meg_mat m = { p, dtype, rows, cols, cols };
    return m;
}

static inline struct meg_mat meg_suballoc_mat(struct meg_suballoc *c, enum meg_dtype dtype, int64_t rows, int64_t cols)
{
    return meg_mat(meg_suballoc(c, (size_t)(rows * cols) * meg_dtype_size(dtype)), dtype, rows, cols);
}

/* Return rows [first, first + n) of m. */
static inline struct meg_mat meg_mat_rows(struct meg_mat m, int64_t first, int64_t n)
{
    m.p = m.p ? (char *)m.p + (size_t)(first * m.ld) * meg_dtype_size(m.dtype) : NULL;
    m.rows = n;
    return m;
}
