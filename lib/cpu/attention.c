/* isa: baseline v3 v4 */
/*
 * attention.c - tiled attention (Milakov and Gimelshein 2018; Dao et al. 2022).  A tile of scores fits in cache, and
 * each query has a running maximum and sum.  The forward pass stores only the log-sum-exp of each query's scores, and
 * the backward pass recomputes the scores.  Tiles before the first or after the last key that their queries attend to
 * are skipped, which nearly halves the cost of causal attention over long sequences.
 *
 * A task of the forward pass is a block of queries of one head.  A task of the backward pass is one key-value group of
 * one sequence, with all query heads of the group.  A single thread therefore sums the group's dk and dv, in a fixed
 * order.
 */
#include <math.h>
#include <omp.h>
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
struct view {
    char *p;
    enum meg_dtype dtype;
    int64_t ld;
    const int64_t *block;
    int64_t block_size;
};

static char *head_at(const void *p, enum meg_dtype dtype, int64_t i)
{
    return (char *)p + i * (int64_t)meg_dtype_size(dtype);
}

static struct view query_head(const struct meg_attn_desc *desc, struct meg_heads x, int64_t i, int64_t j)
{
    const int64_t r = desc->a / desc->g;
    return (struct view){ .p = head_at(x.p, x.dtype, i * x.ld_b + j / r * x.ld_g + j % r * x.ld_h),
                          .dtype = x.dtype,
                          .ld = x.ld_s };
}

static struct view key_head(const struct meg_attn_desc *desc, struct meg_heads x, int64_t i, int64_t grp)
{
    const int64_t *block = desc->block_offset ? desc->block_offset + i * desc->blocks_per_seq : NULL;
    const bool is_paged = block && desc->blocks_per_seq > 1;
    const int64_t first = is_paged ? 0 : block ? *block : i * x.ld_b;
    return (struct view){ .p = head_at(x.p, x.dtype, first + grp * x.ld_g),
                          .dtype = x.dtype,
                          .ld = x.ld_s,
                          .block = is_paged ? block : NULL,
                          .block_size = desc->block_size };
}

/*
 * Return the number of rows in a packed operand.  It is the smaller of `most` and the largest multiple of 8 rows, of
 * max(d, d_v) floats each, that fits into PACK_FLOATS elements.
 */
static int64_t rows_of_pack(int64_t most, const struct meg_attn_desc *desc)
{
    const int64_t d = meg_max64(desc->d, desc->d_v);
    MEG_ASSERT_LE(8 * d, PACK_FLOATS);
    return meg_min64(most, PACK_FLOATS / d & ~(int64_t)7);
}

static void *row(struct view x, int64_t r)
{
    if (x.block)
        return head_at(x.p, x.dtype, x.block[r / x.block_size] + r % x.block_size * x.ld);
    return head_at(x.p, x.dtype, r * x.ld);
}

static float *row32(struct view x, int64_t r)
{
    return (float *)(void *)x.p + r * x.ld;
}

/* Copy rows [r0, r0 + n) of a head to out as f32, without gaps. */
static void pack(float *out, struct view x, int64_t r0, int64_t n, int64_t d)
{
    for (int64_t r = 0; r < n; r++)
        MEG_FN(to_f32)(out + r * d, row(x, r0 + r), x.dtype, d);
}

/* Rows [first, first + n) of a head, and the same rows packed. */
struct rows {
    struct view head;
    int64_t first, n;
    const float *packed;
};

/*
 * Compute c = x y^T for d columns of the rows; the rows of c begin BK elements apart.  If x and y are bf16 and there is
 * a bf16 GEMM, it reads the rows of x and y directly; only rows of y in a KV cache of several blocks are copied first.
 */
static void multiply_rows(float *c, const struct rows *x, const struct rows *y, int64_t d)
{
    uint16_t copy[PACK_FLOATS];
    const struct view *xh = &x->head, *yh = &y->head;
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
static int64_t padded_end(struct key_range keys, int64_t nk)
{
    return meg_min64(keys.lo + ((keys.hi - keys.lo + 15) & ~(int64_t)15), nk);
}

/* Return the position of query t of sequence i. */
static int64_t query_position(const struct meg_attn_desc *desc, int64_t t, int64_t i)
{
    return (desc->query_start ? desc->query_start[i] : desc->q0) + t;
}

/* Return the range of keys, relative to k0, that query t of sequence i attends to. */
static struct key_range visible_keys(const struct meg_attn_desc *desc, int64_t t, int64_t i)
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
static struct key_range visible_to_any(const struct meg_attn_desc *desc, int64_t t0, int64_t t1, int64_t i)
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
static struct key_range visible_in_tile(const struct meg_attn_desc *desc, const struct tile *x, int64_t t)
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
static void add_product(const struct tile *x, char op, const float *s, const float *b, int64_t n, float *c, int64_t ldc)
{
    const int64_t m = op == 'T' ? x->nk : x->nq, k = op == 'T' ? x->nq : x->nk;
    meg_cpu_gemm(&(struct gemm){ op, 'N', m, n, k, f32_operand(s, BK), f32_operand(b, n), 1.0f, c, ldc });
}

/* Return the dropout factors of row t of the tile; NULL without dropout. */
static const float *drop_in_tile(struct drop_buf *buf, const struct meg_attn_desc *desc, const struct dropout *drop,
                                 const struct tile *x, int64_t t)
{
    int64_t unit;
    if (!drop->threshold)
        return NULL;
    unit = (drop->desc->unit0 + x->j) * ((desc->s + 7) & ~(int64_t)7) + desc->k0 + x->k0;
    return drop_factors(buf, drop, unit, x->nk, query_position(desc, x->t0 + t, x->i), drop->desc->sample[x->i]);
}

/* Return whether scores are scale * q.k: there is no soft cap, no ALiBi, and no relative position bias. */
static bool is_plain(const struct meg_attn_desc *desc)
{
    return desc->softcap == 0.0f && !desc->alibi_slope && !desc->rel_bias.p;
}

/*
 * Return the bucket of a relative position, the position of a key minus the position of a query (struct meg_attn_desc).
 */
static int64_t rel_bias_bucket(const struct meg_attn_desc *desc, int64_t relative)
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
static int64_t first_relative(const struct meg_attn_desc *desc, const struct tile *x)
{
    return desc->k0 + x->k0 - query_position(desc, x->t0 + x->nq - 1, x->i);
}

/* Compute the bias of each relative position in the tile. */
static void bias_in_tile(float *bias, const struct meg_attn_desc *desc, const struct tile *x)
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
static void score_row(float *s, float *slope, const float *bias, struct key_range keys,
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
static float sink_of(const struct meg_attn_desc *desc, int64_t j)
{
    float sink = -INFINITY;
    if (desc->sink.p)
        MEG_FN(to_f32)(&sink, element(row_vector(desc->sink.p, desc->sink.dtype, desc->a), 0, j), desc->sink.dtype, 1);
    return sink;
}

/* The running outputs, maxima and sums of queries. */
struct running {
    float *o, *max, *sum;
};

/* Return x for the queries from query t on. */
static struct running running_at(struct running x, int64_t t, int64_t d_v)
{
    return (struct running){ x.o + t * d_v, x.max + t, x.sum + t };
}

/*
 * Replace the scores s [nk] of one query by dropout(exp(scale * s - max)), and by 0 outside `keys`.  Update the running
 * max and sum, and rescale the output x.o [d] to the new max.
 */
static void softmax_row(float *s, struct running x, int64_t d, struct key_range keys, int64_t nk, float scale,
                        const float *factor)
{
    const float m = fmaxf(*x.max, scale * row_max(s + keys.lo, keys.hi - keys.lo));
    const float rescale = *x.sum > 0.0f || *x.sum != *x.sum ? vexp(*x.max - m) : 0.0f;
    const int64_t padded = padded_end(keys, nk);
    float l = 0.0f;
    for (int64_t k = 0; k < keys.lo; k++)
        s[k] = 0.0f;
#pragma omp simd
    for (int64_t k = keys.lo; k < padded; k++)
        s[k] = vexp(scale * s[k] - m);
#pragma omp simd reduction(+ : l)
    for (int64_t k = keys.lo; k < keys.hi; k++)
        l += s[k];
    for (int64_t k = keys.hi; k < nk; k++)
        s[k] = 0.0f;
    if (factor)
        for (int64_t k = keys.lo; k < keys.hi; k++)
            s[k] *= factor[k];
    for (int64_t c = 0; c < d; c++)
        x.o[c] *= rescale;
    *x.sum = *x.sum * rescale + l;
    *x.max = m;
}

/* Add the contribution of a tile to the outputs, maxima and sums of its queries; v is packed. */
static void fwd_tile(const struct meg_attn_desc *desc, const struct tile *x, struct running to, const struct rows *q,
                     const struct rows *k, const float *v, const struct dropout *drop)
{
    float s[BQ * BK] __attribute__((aligned(64)));
    float bias[RELATIVE], slope[BK];
    const bool plain = is_plain(desc);
    struct drop_buf buf;
    if (!plain)
        bias_in_tile(bias, desc, x);
    multiply_rows(s, q, k, desc->d);
    for (int64_t t = 0; t < x->nq; t++) {
        const struct key_range keys = visible_in_tile(desc, x, t);
        if (!plain)
            score_row(s + t * BK, slope, bias + x->nq - 1 - t, keys, desc);
        if (keys.lo < keys.hi)
            softmax_row(s + t * BK, running_at(to, t, desc->d_v), desc->d_v, keys, x->nk, plain ? desc->scale : 1.0f,
                        drop_in_tile(&buf, desc, drop, x, t));
        else
            memset(s + t * BK, 0, (size_t)x->nk * sizeof *s);
    }
    add_product(x, 'N', s, v, desc->d_v, to.o, desc->d_v);
}

/* Compute attention for queries [t0, t1) of head j of sequence i. */
static void fwd_task(const struct meg_attn_fwd_args *a, int64_t i, int64_t j, int64_t t0, int64_t t1,
                     const struct dropout *drop)
{
    float kp[PACK_FLOATS] __attribute__((aligned(64))), vp[PACK_FLOATS] __attribute__((aligned(64)));
    float qp[PACK_FLOATS] __attribute__((aligned(64))), op[PACK_FLOATS] __attribute__((aligned(64)));
    float max[TASK_ROWS], sum[TASK_ROWS];
    const struct meg_attn_desc *desc = a->desc;
    const struct view o = query_head(desc, a->o, i, j), q = query_head(desc, a->q, i, j);
    const int64_t grp = j / (desc->a / desc->g), bk = rows_of_pack(BK, desc);
    const struct view k = key_head(desc, a->k, i, grp), v = key_head(desc, a->v, i, grp);
    const struct key_range visible = visible_to_any(desc, t0, t1, i);
    const struct running all = { op, max, sum };
    float *lse = a->lse + (i * desc->a + j) * desc->s_q;
    for (int64_t t = 0; t < t1 - t0; t++) {
        max[t] = sink_of(desc, j);
        sum[t] = desc->sink.p ? 1.0f : 0.0f;
    }
    memset(op, 0, (size_t)((t1 - t0) * desc->d_v) * sizeof *op);
    pack(qp, q, t0, t1 - t0, desc->d);
    for (int64_t k0 = visible.lo; k0 < visible.hi; k0 += bk) {
        pack(kp, k, k0, meg_min64(bk, visible.hi - k0), desc->d);
        pack(vp, v, k0, meg_min64(bk, visible.hi - k0), desc->d_v);
        for (int64_t t = t0; t < t1; t += BQ) {
            const int64_t nq = meg_min64(BQ, t1 - t);
            const struct key_range mine = visible_to_any(desc, t, t + nq, i);
            const struct tile x = { i, j, t, nq, k0, meg_min64(bk, mine.hi - k0) };
            const struct rows qr = { q, t, nq, qp + (t - t0) * desc->d }, kr = { k, k0, x.nk, kp };
            if (mine.lo < k0 + bk && x.nk > 0)
                fwd_tile(desc, &x, running_at(all, t - t0, desc->d_v), &qr, &kr, vp, drop);
        }
    }
    for (int64_t t = 0; t < t1 - t0; t++) {
        const float r = sum[t] == 0.0f ? 0.0f : 1.0f / sum[t]; /* without a sink, the sum is 0 if all keys are masked */
        for (int64_t c = 0; c < desc->d_v; c++)
            op[t * desc->d_v + c] *= r;
        MEG_FN(from_f32)(row(o, t0 + t), o.dtype, op + t * desc->d_v, desc->d_v);
        lse[t0 + t] = max[t] + logf(sum[t]);
    }
}

void MEG_FN(attn_fwd)(struct meg_stream *st, const struct meg_attn_fwd_args *a)
{
    const struct meg_attn_desc *desc = a->desc;
    const struct dropout drop = drop_begin(a->drop);
    const int64_t task = rows_of_pack(TASK_ROWS, desc), ntasks = meg_ceil_div(desc->s_q, task);
    (void)st;
    MEG_ASSERT_EQ(desc->a % desc->g, 0);
    MEG_ASSERT_LE(desc->k0 + desc->s_k, desc->s);
    meg_cpu_gemm_load();
#pragma omp parallel for collapse(3) schedule(dynamic)
    for (int64_t n = ntasks - 1; n >= 0; n--) /* the longest tasks of causal attention first */
        for (int64_t i = 0; i < desc->b; i++)
            for (int64_t j = 0; j < desc->a; j++)
                fwd_task(a, i, j, n * task, meg_min64((n + 1) * task, desc->s_q), &drop);
}

/*
 * Merge the attention of one query over two sets of keys:
 *   o = (w * o + w_part * o_part) / (w + w_part), w = exp(lse - m), w_part = exp(lse_part - m), m = max(lse, lse_part)
 * If m is -infinity, o and lse do not change.
 */
static void merge_row(float *o, float *lse, const float *o_part, float lse_part, int64_t d)
{
    const float m = lse_part > *lse || lse_part != lse_part ? lse_part : *lse;
    if (m == -INFINITY)
        return;
    const float w = vexp(*lse - m), w_part = vexp(lse_part - m), sum = w + w_part, r = 1.0f / sum;
#pragma omp simd
    for (int64_t c = 0; c < d; c++)
        o[c] = (w * r) * o[c] + (w_part * r) * o_part[c];
    *lse = m + logf(sum);
}

void MEG_FN(attn_merge)(struct meg_stream *st, const struct meg_attn_merge_args *a)
{
    const struct meg_attn_desc *desc = a->desc;

    (void)st;
    MEG_ASSERT_EQ(a->o.dtype, MEG_DTYPE_F32);
    MEG_ASSERT_EQ(a->o_part.dtype, MEG_DTYPE_F32);
#pragma omp parallel for collapse(2) schedule(static)
    for (int64_t i = 0; i < desc->b; i++)
        for (int64_t j = 0; j < desc->a; j++) {
            const struct view to = query_head(desc, a->o, i, j), from = query_head(desc, a->o_part, i, j);
            const int64_t at = (i * desc->a + j) * desc->s_q;
            for (int64_t t = 0; t < desc->s_q; t++)
                merge_row(row32(to, t), a->lse + at + t, row32(from, t), a->lse_part[at + t], desc->d_v);
        }
}

/* Return the sum of x * y over d columns. */
static float dot(const float *x, const float *y, int64_t d)
{
    float s = 0.0f;
#pragma omp simd reduction(+ : s)
    for (int64_t c = 0; c < d; c++)
        s += x[c] * y[c];
    return s;
}

void MEG_FN(attn_delta)(struct meg_stream *st, const struct meg_attn_delta_args *args)
{
    const struct meg_attn_desc *desc = args->desc;

    (void)st;
#pragma omp parallel for collapse(2) schedule(static)
    for (int64_t i = 0; i < desc->b; i++)
        for (int64_t j = 0; j < desc->a; j++) {
            const struct view x = query_head(desc, args->d_o, i, j), y = query_head(desc, args->o, i, j);
            float a[PACK_FLOATS / 8], b[PACK_FLOATS / 8];
            MEG_ASSERT_LE(8 * desc->d_v, PACK_FLOATS);
            for (int64_t t = 0; t < desc->s_q; t++) {
                pack(a, x, t, 1, desc->d_v);
                pack(b, y, t, 1, desc->d_v);
                args->delta[(i * desc->a + j) * desc->s_q + t] = dot(a, b, desc->d_v);
            }
        }
}

/*
 * The operands of one head in the backward pass.  If delta is NULL, it is computed from d_o and o.  d_rel_bias
 * [buckets] and d_sink are sums for this head and sequence; NULL if the gradient is not needed.
 */
struct bwd {
    struct view dq, dk, dv, d_o, o, q, k, v;
    const float *lse, *delta;
    double *d_rel_bias, *d_sink;
};

/* A query of a tile. */
struct query {
    struct key_range keys; /* the keys that it attends to */
    float lse, delta;
    const float *factor;
};

/*
 * Replace s [nk] by the attention weights of one query after dropout, and dp = d_o v^T by the gradient of s.  The
 * scores of the query are scale * s.  Both results are 0 outside q->keys.
 */
static void bwd_row(float *s, float *dp, const struct query *q, int64_t nk, float scale)
{
    const struct key_range keys = q->keys;
    const float lse = q->lse, delta = q->delta, *factor = q->factor;
    const int64_t padded = padded_end(keys, nk);
    for (int64_t k = 0; k < keys.lo; k++)
        s[k] = dp[k] = 0.0f;
    if (factor) {
#pragma omp simd
        for (int64_t k = keys.lo; k < padded; k++) {
            const float p = vexp(scale * s[k] - lse);
            s[k] = p * factor[k];
            dp[k] = scale * p * (dp[k] * factor[k] - delta);
        }
    } else {
#pragma omp simd
        for (int64_t k = keys.lo; k < padded; k++) {
            const float p = vexp(scale * s[k] - lse);
            s[k] = p;
            dp[k] = scale * p * (dp[k] - delta);
        }
    }
    for (int64_t k = keys.hi; k < nk; k++)
        s[k] = dp[k] = 0.0f;
}

/* Return delta of query t: w->delta[t], or the dot product of d_o and o.  d_o is the packed row of the query. */
static float delta_of(const struct bwd *w, const float *d_o, int64_t t, int64_t d_v)
{
    float o[PACK_FLOATS / 8];
    if (w->delta)
        return w->delta[t];
    pack(o, w->o, t, 1, d_v);
    return dot(d_o, o, d_v);
}

/* Add the gradients of the bias of a tile to the sums of their buckets; d_bias has the order of bias_in_tile. */
static void add_to_buckets(double *d_rel_bias, const float *d_bias, const struct meg_attn_desc *desc,
                           const struct tile *x)
{
    const int64_t first = first_relative(desc, x);
    for (int64_t n = 0; n < x->nq + x->nk - 1; n++)
        d_rel_bias[rel_bias_bucket(desc, first + n)] += (double)d_bias[n];
}

/*
 * Like bwd_row, but s contains q.k, and the scores are those of score_row (is_plain is false).  Also add the gradients
 * of the scores to d_bias.
 */
static void bwd_score_row(float *s, float *dp, float *d_bias, const float *bias, const struct query *q, int64_t nk,
                          const struct meg_attn_desc *desc)
{
    float slope[BK];
    score_row(s, slope, bias, q->keys, desc);
    bwd_row(s, dp, q, nk, 1.0f);
#pragma omp simd
    for (int64_t k = q->keys.lo; k < q->keys.hi; k++) {
        d_bias[k] += dp[k];
        dp[k] *= slope[k];
    }
}

/* Add the contribution of one tile to dq, dk, dv and, unless it is NULL, d_rel_bias; k and v are packed. */
static void bwd_tile(const struct meg_attn_desc *desc, const struct bwd *w, const struct tile *x, const float *k,
                     const float *v, const struct dropout *drop)
{
    float s[BQ * BK] __attribute__((aligned(64))), dp[BQ * BK] __attribute__((aligned(64)));
    float q[PACK_FLOATS] __attribute__((aligned(64))), d_o[PACK_FLOATS] __attribute__((aligned(64)));
    float bias[RELATIVE], d_bias[RELATIVE] = { 0 };
    const bool plain = is_plain(desc);
    struct drop_buf buf;
    const int64_t nq = x->nq, nk = x->nk, t0 = x->t0, n = desc->d, n_v = desc->d_v;
    const struct rows queries = { w->q, t0, nq, q }, keys = { w->k, x->k0, nk, k };
    const struct rows d_outputs = { w->d_o, t0, nq, d_o }, values = { w->v, x->k0, nk, v };
    if (!plain)
        bias_in_tile(bias, desc, x);
    pack(q, w->q, t0, nq, n);
    pack(d_o, w->d_o, t0, nq, n_v);
    multiply_rows(s, &queries, &keys, n);
    multiply_rows(dp, &d_outputs, &values, n_v);
    for (int64_t t = 0; t < nq; t++) {
        const struct query one = { .keys = visible_in_tile(desc, x, t),
                                   .lse = w->lse[t0 + t],
                                   .delta = delta_of(w, d_o + t * n_v, t0 + t, n_v),
                                   .factor = drop_in_tile(&buf, desc, drop, x, t) };
        const int64_t first = nq - 1 - t;
        if (plain)
            bwd_row(s + t * BK, dp + t * BK, &one, nk, desc->scale);
        else
            bwd_score_row(s + t * BK, dp + t * BK, d_bias + first, bias + first, &one, nk, desc);
    }
    if (w->d_rel_bias)
        add_to_buckets(w->d_rel_bias, d_bias, desc, x);
    add_product(x, 'T', s, d_o, n_v, row32(w->dv, x->k0), w->dv.ld);
    add_product(x, 'T', dp, q, n, row32(w->dk, x->k0), w->dk.ld);
    add_product(x, 'N', dp, k, n, row32(w->dq, t0), w->dq.ld);
}

/*
 * Return the number of f32 sums that a thread needs for gradients of type `grad`: sums of dq of one head, and of dk and
 * dv of one group.  It is 0 if `grad` is f32, because f32 gradients are summed in place.
 */
static int64_t sums_per_thread(const struct meg_attn_desc *desc, enum meg_dtype grad)
{
    return grad == MEG_DTYPE_F32 ? 0 : desc->s_q * desc->d + desc->s_k * (desc->d + desc->d_v);
}

/* Return the number of f64 sums [b, a, buckets + 1] of parameter gradients: for d_rel_bias, and for d_sink. */
static int64_t num_param_sums(const struct meg_attn_desc *desc)
{
    return desc->b * desc->a * (desc->rel_bias.rows + 1);
}

size_t MEG_FN(attn_bwd_nbytes)(const struct meg_attn_desc *desc, enum meg_dtype grad, bool has_param_grads)
{
    const int64_t threads = meg_min64(omp_get_max_threads(), desc->b * desc->g);
    return (size_t)(has_param_grads ? num_param_sums(desc) : 0) * sizeof(double) +
           (size_t)(threads * sums_per_thread(desc, grad)) * sizeof(float);
}

/*
 * Return the f32 view in which to sum n rows of the gradient x: x itself if x is f32, else buf [n,d].  The sums begin
 * with the values of x if accumulate is set, and with 0 otherwise.
 */
static struct view begin_sum(struct view x, float *buf, int64_t n, int64_t d, int accumulate)
{
    const struct view sum =
        x.dtype == MEG_DTYPE_F32 ? x : (struct view){ .p = (char *)buf, .dtype = MEG_DTYPE_F32, .ld = d };
    for (int64_t t = 0; t < n; t++)
        if (!accumulate)
            memset(row32(sum, t), 0, (size_t)d * sizeof(float));
        else if (sum.p != x.p)
            MEG_FN(to_f32)(row32(sum, t), row(x, t), x.dtype, d);
    return sum;
}

/* Round `sum` into x, unless begin_sum returned x itself. */
static void end_sum(struct view x, struct view sum, int64_t n, int64_t d)
{
    for (int64_t t = 0; t < n && sum.p != x.p; t++)
        MEG_FN(from_f32)(row(x, t), x.dtype, row32(sum, t), d);
}

static void bwd_head(const struct meg_attn_desc *desc, const struct bwd *w, int64_t i, int64_t j,
                     const struct dropout *drop)
{
    float kp[PACK_FLOATS] __attribute__((aligned(64))), vp[PACK_FLOATS] __attribute__((aligned(64)));
    const int64_t bk = rows_of_pack(BK, desc), bq = rows_of_pack(BQ, desc);
    for (int64_t k0 = 0; k0 < desc->s_k; k0 += bk) {
        pack(kp, w->k, k0, meg_min64(bk, desc->s_k - k0), desc->d);
        pack(vp, w->v, k0, meg_min64(bk, desc->s_k - k0), desc->d_v);
        for (int64_t t0 = 0; t0 < desc->s_q; t0 += bq) {
            const int64_t nq = meg_min64(bq, desc->s_q - t0);
            const struct key_range visible = visible_to_any(desc, t0, t0 + nq, i);
            const struct tile x = { i, j, t0, nq, k0, meg_min64(bk, visible.hi - k0) };
            if (visible.lo < k0 + bk && x.nk > 0)
                bwd_tile(desc, w, &x, kp, vp, drop);
        }
    }
}

/* Add the gradient of the sink of head j to w->d_sink. */
static void bwd_sink(const struct meg_attn_desc *desc, const struct bwd *w, int64_t j)
{
    const float sink = sink_of(desc, j);
    float d_o[PACK_FLOATS / 8];
    for (int64_t t = 0; t < desc->s_q; t++) {
        pack(d_o, w->d_o, t, 1, desc->d_v);
        *w->d_sink -= (double)(vexp(sink - w->lse[t]) * delta_of(w, d_o, t, desc->d_v));
    }
}

/*
 * Compute the gradients of one group of sequence i.  params [b, a, buckets + 1] receives the sums of d_rel_bias and, in
 * the last column, of d_sink.  buf is memory for sums_per_thread f32 sums of bf16 or f16 dq, dk and dv.
 */
static void bwd_group(const struct meg_attn_bwd_args *x, int64_t i, int64_t grp, const struct dropout *drop,
                      double *params, float *buf)
{
    const struct meg_attn_desc *desc = x->desc;
    const int64_t r = desc->a / desc->g, buckets = desc->rel_bias.rows;
    const struct view dk = key_head(desc, x->dk, i, grp), dv = key_head(desc, x->dv, i, grp);
    float *dq_buf = buf, *dk_buf = dq_buf + desc->s_q * desc->d, *dv_buf = dk_buf + desc->s_k * desc->d;
    struct bwd w = { .dk = begin_sum(dk, dk_buf, desc->s_k, desc->d, x->accumulate),
                     .dv = begin_sum(dv, dv_buf, desc->s_k, desc->d_v, x->accumulate),
                     .k = key_head(desc, x->k, i, grp),
                     .v = key_head(desc, x->v, i, grp) };
    for (int64_t j = grp * r; j < (grp + 1) * r; j++) {
        const struct view dq = query_head(desc, x->dq, i, j);
        w.dq = begin_sum(dq, dq_buf, desc->s_q, desc->d, x->accumulate);
        w.d_o = query_head(desc, x->d_o, i, j);
        w.q = query_head(desc, x->q, i, j);
        w.lse = x->lse + (i * desc->a + j) * desc->s_q;
        w.o = query_head(desc, x->o, i, j);
        w.delta = x->delta ? x->delta + (i * desc->a + j) * desc->s_q : NULL;
        w.d_rel_bias = x->d_rel_bias.p ? params + (i * desc->a + j) * (buckets + 1) : NULL;
        w.d_sink = x->d_sink.p ? params + (i * desc->a + j) * (buckets + 1) + buckets : NULL;
        bwd_head(desc, &w, i, j, drop);
        if (w.d_sink)
            bwd_sink(desc, &w, j);
        end_sum(dq, w.dq, desc->s_q, desc->d);
    }
    end_sum(dk, w.dk, desc->s_k, desc->d);
    end_sum(dv, w.dv, desc->s_k, desc->d_v);
}

/* Set grad [rows, a] to the sums of params [b, a, stride] over b, or add the sums if accumulate is set. */
static void sum_params(const struct meg_attn_desc *desc, struct meg_mat grad, const double *params, int64_t stride,
                       int accumulate)
{
    for (int64_t r = 0; r < grad.rows; r++)
        for (int64_t j = 0; j < desc->a; j++) {
            float value = 0.0f;
            double sum = 0.0;
            for (int64_t i = 0; i < desc->b; i++)
                sum += params[(i * desc->a + j) * stride + r];
            if (accumulate)
                MEG_FN(to_f32)(&value, element(grad, r, j), grad.dtype, 1);
            value += (float)sum;
            MEG_FN(from_f32)(element(grad, r, j), grad.dtype, &value, 1);
        }
}

void MEG_FN(attn_bwd)(struct meg_stream *st, const struct meg_attn_bwd_args *x)
{
    const struct meg_attn_desc *desc = x->desc;
    const struct dropout drop = drop_begin(x->drop);
    const int64_t nbuf = sums_per_thread(desc, x->dq.dtype), buckets = desc->rel_bias.rows;
    const int64_t nparams = x->d_rel_bias.p || x->d_sink.p ? num_param_sums(desc) : 0;
    double *params = x->workspace.p;
    float *bufs = (void *)(params + nparams);
    int64_t nthreads = 0; /* number of threads that process a group */
    (void)st;
    MEG_ASSERT_EQ(desc->a % desc->g, 0);
    MEG_ASSERT_LE(desc->k0 + desc->s_k, desc->s);
    meg_cpu_gemm_load();
    if (nparams)
        memset(params, 0, (size_t)nparams * sizeof *params);
#pragma omp parallel
    {
        int64_t thread = -1;
#pragma omp for collapse(2) schedule(dynamic)
        for (int64_t i = 0; i < desc->b; i++)
            for (int64_t grp = 0; grp < desc->g; grp++) {
                if (thread < 0) {
#pragma omp atomic capture
                    thread = nthreads++;
                }
                bwd_group(x, i, grp, &drop, params, bufs + thread * nbuf);
            }
    }
    if (x->d_rel_bias.p)
        sum_params(desc, x->d_rel_bias, params, buckets + 1, x->accumulate_params);
    if (x->d_sink.p)
        sum_params(desc, row_vector(x->d_sink.p, x->d_sink.dtype, desc->a), params + buckets, buckets + 1,
                   x->accumulate_params);
}
