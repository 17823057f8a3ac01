/*
 * attention.h - tiled attention (Milakov and Gimelshein 2018; Dao et al. 2022).  A tile of scores fits in cache, and
 * each query has a running maximum and sum.  The forward pass stores only the log-sum-exp of each query's scores, and
 * the backward pass recomputes the scores.  Tiles before the first or after the last key that their queries attend to
 * are skipped, which nearly halves the cost of causal attention over long sequences.
 */
#pragma once
#include <math.h>
#include "cpu/row.h"
#include "cpu/vmath.h"

/*
 * The maximum numbers of queries and keys per tile, and of queries per forward task.  GEMM operands are packed into
 * contiguous f32 rows: the stride between rows of one head is often near a power of two, so that unpacked rows map to
 * the same cache sets, and GEMM reaches 175 instead of 215 GFLOP/s.  A packed operand has at most PACK_FLOATS elements;
 * for large head sizes it has fewer rows.
 */
enum { BQ = 128, BK = 256, TASK_ROWS = 2 * BQ, PACK_FLOATS = BK * 128 };

/*
 * One head of one sequence as a matrix; row t begins at element t*ld.  In a KV cache of several blocks (block is not
 * NULL), row t begins at element block[t / block_size] + t % block_size * ld.
 */
struct head {
    char *p;
    enum meg_dtype dtype;
    int64_t ld;
    const int64_t *block;
    int64_t block_size;
};

static inline char *head_at(const void *p, enum meg_dtype dtype, int64_t i)
{
    return (char *)p + i * (int64_t)meg_dtype_size(dtype);
}

static inline struct head query_head(const struct meg_attn_desc *desc, struct meg_heads x, int64_t i, int64_t j)
{
    const int64_t r = desc->a / desc->g;
    return (struct head){ .p = head_at(x.p, x.dtype, i * x.ld_b + j / r * x.ld_g + j % r * x.ld_h),
                          .dtype = x.dtype,
                          .ld = x.ld_s };
}

static inline struct head key_head(const struct meg_attn_desc *desc, struct meg_heads x, int64_t i, int64_t grp)
{
    const int64_t *block = desc->block_offset ? desc->block_offset + i * desc->blocks_per_seq : NULL;
    const bool is_paged = block && desc->blocks_per_seq > 1;
    const int64_t first = is_paged ? 0 : block ? *block : i * x.ld_b;
    return (struct head){ .p = head_at(x.p, x.dtype, first + grp * x.ld_g),
                          .dtype = x.dtype,
                          .ld = x.ld_s,
                          .block = is_paged ? block : NULL,
                          .block_size = desc->block_size };
}

/*
 * Return the number of rows in a packed operand.  It is the smaller of `most` and the largest multiple of 8 rows, of
 * max(d, d_v) floats each, that fits into PACK_FLOATS elements.
 */
static inline int64_t rows_of_pack(int64_t most, const struct meg_attn_desc *desc)
{
    const int64_t d = meg_max64(desc->d, desc->d_v);
    MEG_ASSERT_LE(8 * d, PACK_FLOATS);
    return meg_min64(most, PACK_FLOATS / d & ~(int64_t)7);
}

static inline void *row(struct head x, int64_t r)
{
    if (x.block)
        return head_at(x.p, x.dtype, x.block[r / x.block_size] + r % x.block_size * x.ld);
    return head_at(x.p, x.dtype, r * x.ld);
}

static inline float *row32(struct head x, int64_t r)
{
    return (float *)(void *)x.p + r * x.ld;
}

/* Copy rows [r0, r0 + n) of a head to out as f32, without gaps. */
static inline void pack(float *out, struct head x, int64_t r0, int64_t n, int64_t d)
{
    for (int64_t r = 0; r < n; r++)
        MEG_FN(to_f32)(out + r * d, row(x, r0 + r), x.dtype, d);
}

/* Rows [first, first + n) of a head, and the same rows packed. */
struct rows {
    struct head head;
    int64_t first, n;
    const float *packed;
};

/*
 * Compute c = x y^T for d columns of the rows; the rows of c begin BK elements apart.  If x and y are bf16 and there is
 * a bf16 GEMM, it reads the rows of x and y directly; only rows of y in a KV cache of several blocks are copied first.
 */
static inline void multiply_rows(float *c, const struct rows *x, const struct rows *y, int64_t d)
{
    uint16_t copy[PACK_FLOATS];
    const struct head *xh = &x->head, *yh = &y->head;
    struct gemm g = { 'N', 'T', x->n, y->n, d, f32_operand(x->packed, d), f32_operand(y->packed, d), 0.0f, c, BK };
    if (xh->dtype == MEG_DTYPE_BF16 && yh->dtype == MEG_DTYPE_BF16 && meg_cpu_has_bf16_gemm()) {
        for (int64_t r = 0; r < y->n && yh->block; r++)
            memcpy(copy + r * d, row(*yh, y->first + r), (size_t)d * sizeof *copy);
        g.a = (struct meg_mat){ .p = row(*xh, x->first), .dtype = MEG_DTYPE_BF16, .ld = xh->ld };
        g.b = (struct meg_mat){ .p = yh->block ? copy : row(*yh, y->first),
                                .dtype = MEG_DTYPE_BF16,
                                .ld = yh->block ? d : yh->ld };
    }
    meg_cpu_gemm(&g);
}

/* Keys [lo, hi) of a key chunk; empty if hi <= lo. */
struct key_range {
    int64_t lo, hi;
};

/*
 * Return the end of the range of keys for which exp is computed in a row of nk scores.  The range is extended to a
 * multiple of 16 keys, so that the loop has no scalar remainder; the results of the added keys are overwritten by 0.
 */
static inline int64_t padded_end(struct key_range keys, int64_t nk)
{
    return meg_min64(keys.lo + ((keys.hi - keys.lo + 15) & ~(int64_t)15), nk);
}

/* Return the position of query t of sequence i. */
static inline int64_t query_position(const struct meg_attn_desc *desc, int64_t t, int64_t i)
{
    return (desc->query_start ? desc->query_start[i] : desc->q0) + t;
}

/* Return the range of keys, relative to k0, that query t of sequence i attends to. */
static inline struct key_range visible_keys(const struct meg_attn_desc *desc, int64_t t, int64_t i)
{
    struct key_range s = { 0, desc->s_k };
    if (desc->doc_start)
        s.lo = meg_max64(s.lo, desc->doc_start[t * desc->b + i] - desc->k0);
    if (desc->key_length)
        s.hi = meg_min64(s.hi, desc->key_length[i] - desc->k0);
    if (desc->window_left >= 0)
        s.lo = meg_max64(s.lo, query_position(desc, t, i) - desc->window_left - desc->k0);
    if (desc->window_right >= 0)
        s.hi = meg_min64(s.hi, query_position(desc, t, i) + desc->window_right + 1 - desc->k0);
    return s;
}

/* Return a range that contains all keys that queries [t0, t1) attend to.  Its lo is a multiple of 8. */
static inline struct key_range visible_to_any(const struct meg_attn_desc *desc, int64_t t0, int64_t t1, int64_t i)
{
    struct key_range s = { desc->s_k, 0 };
    for (int64_t t = t0; t < t1; t++) {
        const struct key_range q = visible_keys(desc, t, i);
        s.lo = meg_min64(s.lo, q.lo);
        s.hi = meg_max64(s.hi, q.hi);
    }
    s.lo &= ~(int64_t)7;
    return s;
}

/* A tile of scores: queries [t0, t0+nq) of head j of sequence i, and keys [k0, k0+nk). */
struct tile {
    int64_t i, j, t0, nq, k0, nk;
};

/* Return the keys of the tile, relative to k0, that query t of the tile attends to. */
static inline struct key_range visible_in_tile(const struct meg_attn_desc *desc, const struct tile *x, int64_t t)
{
    struct key_range s = visible_keys(desc, x->t0 + t, x->i);
    s.lo = meg_min64(meg_max64(s.lo - x->k0, 0), x->nk);
    s.hi = meg_max64(meg_min64(s.hi - x->k0, x->nk), s.lo);
    return s;
}

/*
 * Add op(s) b to c, which has n columns; s is a tile of scores, op(s) its transpose if op is 'T', and b is packed.  The
 * rows of c begin ldc elements apart.
 */
static inline void add_product(const struct tile *x, char op, const float *s, const float *b, int64_t n, float *c,
                               int64_t ldc)
{
    const int64_t m = op == 'T' ? x->nk : x->nq, k = op == 'T' ? x->nq : x->nk;
    const struct gemm g = { op, 'N', m, n, k, f32_operand(s, BK), f32_operand(b, n), 1.0f, c, ldc };
    meg_cpu_gemm(&g);
}

/* Return the dropout factors of row t of the tile; NULL without dropout. */
static inline const float *drop_in_tile(struct drop_buf *buf, const struct meg_attn_desc *desc,
                                        const struct dropout *drop, const struct tile *x, int64_t t)
{
    int64_t unit;
    if (!drop->threshold)
        return NULL;
    unit = (drop->desc->unit0 + x->j) * ((desc->s + 7) & ~(int64_t)7) + desc->k0 + x->k0;
    return drop_factors(buf, drop, unit, x->nk, query_position(desc, x->t0 + t, x->i), drop->desc->sample[x->i]);
}

/* Return whether scores are scale * q.k: there is no soft cap, no ALiBi, and no relative position bias. */
static inline bool is_plain(const struct meg_attn_desc *desc)
{
    return desc->softcap == 0.0f && !desc->alibi_slope && !desc->rel_bias.p;
}

/*
 * Return the bucket of a relative position, the position of a key minus the position of a query (struct meg_attn_desc).
 */
static inline int64_t rel_bias_bucket(const struct meg_attn_desc *desc, int64_t relative)
{
    const bool is_both = desc->rel_bias_is_bidirectional;
    const int64_t n = desc->rel_bias.rows / (is_both ? 2 : 1), exact = n / 2, first = is_both && relative > 0 ? n : 0;
    const int64_t distance = is_both && relative > 0 ? relative : meg_max64(-relative, 0);
    const float ratio = (float)distance / (float)exact, max = (float)desc->rel_bias_max_distance / (float)exact;
    if (distance < exact)
        return first + distance;
    return first + meg_min64(exact + (int64_t)(logf(ratio) / logf(max) * (float)(n - exact)), n - 1);
}

/*
 * The bias of a score depends on the position of the key relative to the query.  A tile has nq + nk - 1 < RELATIVE
 * relative positions, and element k - t + nq - 1 of an array of biases belongs to key k and query t of the tile.
 */
enum { RELATIVE = BQ + BK };

/* Return the relative position of element 0, which belongs to key 0 and query nq - 1 of the tile. */
static inline int64_t first_relative(const struct meg_attn_desc *desc, const struct tile *x)
{
    return desc->k0 + x->k0 - query_position(desc, x->t0 + x->nq - 1, x->i);
}

/* Compute the bias of each relative position in the tile. */
static inline void bias_in_tile(float *bias, const struct meg_attn_desc *desc, const struct tile *x)
{
    const int64_t first = first_relative(desc, x);
    for (int64_t n = 0; n < x->nq + x->nk - 1; n++) {
        const int64_t relative = first + n;
        bias[n] = 0.0f;
        if (desc->rel_bias.p)
            MEG_FN(to_f32)
        (bias + n, element(desc->rel_bias, rel_bias_bucket(desc, relative), x->j), desc->rel_bias.dtype, 1);
        if (desc->alibi_slope)
            bias[n] -= desc->alibi_slope[x->j] * (float)(relative < 0 ? -relative : relative);
    }
}

/* Replace q.k in s by the scores of one query and the keys of a range, and set slope to d score / d q.k. */
static inline void score_row(float *s, float *slope, const float *bias, struct key_range keys,
                             const struct meg_attn_desc *desc)
{
    const float scale = desc->scale, cap = desc->softcap, r = cap > 0.0f ? scale / cap : 0.0f;
    if (cap > 0.0f) {
#pragma omp simd
        for (int64_t k = keys.lo; k < keys.hi; k++) {
            const float th = vtanh(r * s[k]);
            s[k] = cap * th + bias[k];
            slope[k] = scale * (1.0f - th * th);
        }
    } else {
#pragma omp simd
        for (int64_t k = keys.lo; k < keys.hi; k++) {
            s[k] = scale * s[k] + bias[k];
            slope[k] = scale;
        }
    }
}

/* Return the sink of head j, or -infinity if there are no sinks. */
static inline float sink_of(const struct meg_attn_desc *desc, int64_t j)
{
    float sink = -INFINITY;
    if (desc->sink.p)
        MEG_FN(to_f32)(&sink, element(row_vector(desc->sink.p, desc->sink.dtype, desc->a), 0, j), desc->sink.dtype, 1);
    return sink;
}
