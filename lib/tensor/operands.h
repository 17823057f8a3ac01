/*
 * operands.h - the operands of operations: matrices, views of heads, flat arrays, dropout and workspaces.  See
 * tensor/ops.h for shapes and data types.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "tensor/dtype.h"

MEG_BEGIN_DECLS

/* A matrix [rows, cols].  Row r begins ld elements after row r-1. */
struct meg_mat {
    void *p;
    enum meg_dtype dtype;
    int64_t rows, cols, ld;
};

/* Return the value of a matrix that is not given: its p is NULL. */
static inline struct meg_mat meg_no_mat(void)
{
    struct meg_mat m = { NULL, MEG_DTYPE_F32, 0, 0, 0 };

    return m;
}

/*
 * A strided view of the heads in a tensor such as qkv or a KV cache.  Column c of a head, at token t of sequence i:
 *   query head j:                  p[t*ld_s + i*ld_b + (j/r)*ld_g + (j%r)*ld_h + c]
 *   key or value head of group j:  p[t*ld_s + i*ld_b + j*ld_g + c]
 * r = a/g is the number of query heads per key-value group.
 */
struct meg_heads {
    void *p;
    enum meg_dtype dtype;
    int64_t ld_s, ld_b, ld_g, ld_h;
};

/*
 * Dropout parameters.  A dropout mask is a function of global indices, so it does not depend on the parallel layout.  A
 * unit is a column of a hidden state or one attention weight of a query.  Philox (base/philox.h) returns eight 16-bit
 * numbers, one for each of eight units.  The key is (seed, 1 + 16*layer + site), the counter (unit/8, position, sample
 * low, sample high).  Let T = min(round(65536 p), 65535).  A unit is kept iff its number is >= T; a kept unit is
 * multiplied by 65536/(65536-T).  The global indices are:
 *   hidden dropout: unit = unit0 + column; position and sample are the row's
 *   attention:      unit = (unit0 + head) * round_up(s, 8) + position of the key, where s is the length of the full
 *                   sequence (struct meg_attn_desc); position is the position of the query
 * With p = 0 there is no dropout.
 */
enum meg_drop_site {
    MEG_DROP_EMBED,
    MEG_DROP_ATTN,
    MEG_DROP_ATTN_OUT,
    MEG_DROP_MLP_OUT,
    MEG_DROP_CROSS_ATTN,
    MEG_DROP_CROSS_ATTN_OUT
};
struct meg_drop {
    float p;
    uint32_t seed;
    int32_t layer; /* global index of the layer; for an embedding, of the first layer of its stack */
    enum meg_drop_site site;
    int64_t unit0;                  /* global index of this shard's column 0 (hidden dropout) or head 0 (attention) */
    int64_t pos0;                   /* global sequence position of row 0; hidden dropout only */
    int64_t b;                      /* sequences in the micro-batch: row r is position pos0 + r/b of sequence r%b */
    const int64_t *sample;          /* [b] in device memory: global sample number of each sequence (struct meg_batch) */
    const int32_t *position_of_row; /* [rows/b] in device memory: if not NULL, row r is position position_of_row[r/b] */
};

/*
 * Device memory that an operation may overwrite while it runs.  The table has a function that returns the necessary
 * size for given shapes.  Such a function needs no open device and reads no tensor, and its result does not decrease if
 * a shape grows.
 */
struct meg_workspace {
    void *p;
    size_t nbytes;
};

/* A flat array; p is NULL if it is absent. */
struct meg_array {
    void *p;
    enum meg_dtype dtype;
};

MEG_END_DECLS
