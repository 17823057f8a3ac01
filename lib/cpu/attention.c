/* isa: baseline v3 v4 */
/*
 * attention.c - tiled attention (Milakov and Gimelshein 2018; Dao et al. 2022).  A tile of scores fits in cache, and
 * each query has a running maximum and sum.  Forward keeps only the log-sum-exp of each query's scores, and backward
 * recomputes the scores.  Completely masked tiles are skipped, which nearly halves the cost of causal attention over
 * long sequences.
 *
 * A task of the forward pass is a block of queries of one head.  A task of the backward pass is one key-value group of
 * one sequence, with all query heads of the group.  A single thread therefore sums the group's dk and dv, in a fixed
 * order.
 */
#include <math.h>
#include "base/mem.h"
#include "cpu/row.h"
#include "cpu/vmath.h"

/*
 * BQ is the number of queries per tile, BK the number of keys per tile.  TASK_ROWS is the number of queries per forward
 * task.  GEMM operands are packed into contiguous f32 rows.  Before packing, the stride between rows of one head is
 * often near a power of two.  The rows then map to the same cache sets, and GEMM reaches 175 instead of 215 GFLOP/s.  A
 * packed operand has at most PACK_FLOATS elements; for large head sizes it has fewer rows.
 */
enum { BQ = 128, BK = 256, TASK_ROWS = 2 * BQ, PACK_FLOATS = BK * 128 };

/* One head of one sequence as a matrix; row t begins at element t*ld. */
struct view {
    char *p;
    enum meg_dtype dtype;
    int64_t ld;
};

static char *head_at(const void *p, enum meg_dtype dtype, int64_t i)
{
    return (char *)p + i * (int64_t)meg_dtype_size(dtype);
}

static struct view query_head(const struct meg_attn_geom *ge, struct meg_heads x, int64_t i, int64_t j)
{
    const int64_t r = ge->a / ge->g;
    return (struct view){ head_at(x.p, x.dtype, i * x.ld_b + j / r * x.ld_g + j % r * x.ld_h), x.dtype, x.ld_s };
}

static struct view key_head(struct meg_heads x, int64_t i, int64_t grp)
{
    return (struct view){ head_at(x.p, x.dtype, i * x.ld_b + grp * x.ld_g), x.dtype, x.ld_s };
}

/*
 * Return the number of rows, of d floats each, in a packed operand.  It is the smaller of `most` and the largest
 * multiple of 8 rows that fits into PACK_FLOATS elements.
 */
static int64_t rows_of_pack(int64_t most, int64_t d)
{
    MEG_ASSERT_LE(8 * d, PACK_FLOATS);
    return min64(most, PACK_FLOATS / d & ~(int64_t)7);
}

static void *row(struct view x, int64_t r)
{
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

/* Keys [lo, hi) of a key chunk; empty if hi <= lo. */
struct key_range {
    int64_t lo, hi;
};

/* Return the keys that query t of sequence i attends to. */
static struct key_range visible_keys(const struct meg_attn_geom *ge, int64_t t, int64_t i)
{
    struct key_range s = { 0, ge->s_k };
    if (ge->doc_start)
        s.lo = max64(s.lo, ge->doc_start[t * ge->b + i] - ge->k0);
    if (ge->is_causal)
        s.hi = min64(s.hi, ge->q0 + t + 1 - ge->k0);
    return s;
}

/* Return the smallest range that contains all keys of queries [t0, t1).  Its lo is rounded down to a multiple of 8. */
static struct key_range visible_to_any(const struct meg_attn_geom *ge, int64_t t0, int64_t t1, int64_t i)
{
    struct key_range s = { ge->s_k, 0 };
    for (int64_t t = t0; t < t1; t++) {
        const struct key_range q = visible_keys(ge, t, i);
        s.lo = min64(s.lo, q.lo);
        s.hi = max64(s.hi, q.hi);
    }
    s.lo &= ~(int64_t)7;
    return s;
}

/* A tile of scores: queries [t0, t0+nq) of head j of sequence i, and keys [k0, k0+nk). */
struct tile {
    int64_t i, j, t0, nq, k0, nk;
};

/* Return the keys of the tile, relative to k0, that query t of the tile attends to. */
static struct key_range visible_in_tile(const struct meg_attn_geom *ge, const struct tile *x, int64_t t)
{
    struct key_range s = visible_keys(ge, x->t0 + t, x->i);
    s.lo = min64(max64(s.lo - x->k0, 0), x->nk);
    s.hi = max64(min64(s.hi - x->k0, x->nk), s.lo);
    return s;
}

/* Return the dropout factors of row t of the tile; NULL without dropout. */
static const float *drop_in_tile(struct drop_buf *buf, const struct meg_attn_geom *ge, const struct meg_drop *d,
                                 const struct dropout *drop, const struct tile *x, int64_t t)
{
    const int64_t unit = (d->unit0 + x->j) * ((ge->s + 7) & ~(int64_t)7) + ge->k0 + x->k0;
    return drop->threshold ? drop_factors(buf, drop, unit, x->nk, ge->q0 + x->t0 + t, d->sample[x->i]) : NULL;
}

/*
 * Replace the scores s [nk] of one query by dropout(exp(scale * s - max)), and by 0 outside `keys`.  Update the running
 * max and sum, and rescale the output o [d] accumulated so far to the new max.
 */
static void softmax_row(float *s, float *o, int64_t d, struct key_range keys, int64_t nk, float scale, float *max,
                        float *sum, const float *factor)
{
    const float m = fmaxf(*max, scale * row_max(s + keys.lo, keys.hi - keys.lo));
    const float rescale = *sum > 0.0f || *sum != *sum ? vexp(*max - m) : 0.0f;
    float l = 0.0f;
    for (int64_t k = 0; k < keys.lo; k++)
        s[k] = 0.0f;
#pragma omp simd reduction(+ : l)
    for (int64_t k = keys.lo; k < keys.hi; k++) {
        s[k] = vexp(scale * s[k] - m);
        l += s[k];
    }
    for (int64_t k = keys.hi; k < nk; k++)
        s[k] = 0.0f;
    if (factor)
        for (int64_t k = keys.lo; k < keys.hi; k++)
            s[k] *= factor[k];
    for (int64_t c = 0; c < d; c++)
        o[c] *= rescale;
    *sum = *sum * rescale + l;
    *max = m;
}

/* Add the contribution of a tile to the output o, max and sum of its queries; q, k and v are packed. */
static void fwd_tile(const struct meg_attn_geom *ge, const struct tile *x, float *o, const float *q, const float *k,
                     const float *v, float *max, float *sum, const struct meg_drop *d, const struct dropout *drop)
{
    float s[BQ * BK] __attribute__((aligned(64)));
    struct drop_buf buf;
    meg_cpu_gemm('N', 'T', x->nq, x->nk, ge->d, 1.0f, q, ge->d, k, ge->d, 0.0f, s, BK);
    for (int64_t t = 0; t < x->nq; t++) {
        const struct key_range keys = visible_in_tile(ge, x, t);
        if (keys.lo < keys.hi)
            softmax_row(s + t * BK, o + t * ge->d, ge->d, keys, x->nk, ge->scale, max + t, sum + t,
                        drop_in_tile(&buf, ge, d, drop, x, t));
        else
            memset(s + t * BK, 0, (size_t)x->nk * sizeof *s);
    }
    meg_cpu_gemm('N', 'N', x->nq, ge->d, x->nk, 1.0f, s, BK, v, ge->d, 1.0f, o, ge->d);
}

/* Compute attention for queries [t0, t1) of one head. */
static void fwd_task(const struct meg_attn_geom *ge, struct view o, float *lse, struct view q, struct view k,
                     struct view v, int64_t i, int64_t j, int64_t t0, int64_t t1, const struct meg_drop *d,
                     const struct dropout *drop)
{
    float kp[PACK_FLOATS] __attribute__((aligned(64))), vp[PACK_FLOATS] __attribute__((aligned(64)));
    float qp[PACK_FLOATS] __attribute__((aligned(64))), op[PACK_FLOATS] __attribute__((aligned(64)));
    float max[TASK_ROWS], sum[TASK_ROWS];
    const struct key_range visible = visible_to_any(ge, t0, t1, i);
    const int64_t bk = rows_of_pack(BK, ge->d);
    for (int64_t t = 0; t < t1 - t0; t++) {
        max[t] = -INFINITY;
        sum[t] = 0.0f;
    }
    memset(op, 0, (size_t)((t1 - t0) * ge->d) * sizeof *op);
    pack(qp, q, t0, t1 - t0, ge->d);
    for (int64_t k0 = visible.lo; k0 < visible.hi; k0 += bk) {
        pack(kp, k, k0, min64(bk, visible.hi - k0), ge->d);
        pack(vp, v, k0, min64(bk, visible.hi - k0), ge->d);
        for (int64_t t = t0; t < t1; t += BQ) {
            const int64_t nq = min64(BQ, t1 - t);
            const struct key_range mine = visible_to_any(ge, t, t + nq, i);
            const struct tile x = { i, j, t, nq, k0, min64(bk, mine.hi - k0) };
            if (mine.lo < k0 + bk && x.nk > 0)
                fwd_tile(ge, &x, op + (t - t0) * ge->d, qp + (t - t0) * ge->d, kp, vp, max + t - t0, sum + t - t0, d,
                         drop);
        }
    }
    for (int64_t t = 0; t < t1 - t0; t++) {
        const float r = sum[t] == 0.0f ? 0.0f : 1.0f / sum[t]; /* the sum is 0 if all keys are masked */
        for (int64_t c = 0; c < ge->d; c++)
            op[t * ge->d + c] *= r;
        MEG_FN(from_f32)(row(o, t0 + t), o.dtype, op + t * ge->d, ge->d);
        lse[t0 + t] = max[t] + logf(sum[t]);
    }
}

void MEG_FN(attn_fwd)(struct meg_stream *st, const struct meg_attn_geom *ge, struct meg_heads o, float *lse,
                      struct meg_heads q, struct meg_heads k, struct meg_heads v, const struct meg_drop *d)
{
    const struct dropout drop = drop_begin(d);
    const int64_t task = rows_of_pack(TASK_ROWS, ge->d), ntasks = ceil_div(ge->s_q, task), r = ge->a / ge->g;
    (void)st;
    MEG_ASSERT_EQ(ge->a % ge->g, 0);
    MEG_ASSERT_LE(ge->k0 + ge->s_k, ge->s);
    meg_cpu_gemm_load();
#pragma omp parallel for collapse(3) schedule(dynamic)
    for (int64_t n = ntasks - 1; n >= 0; n--) /* the longest tasks first */
        for (int64_t i = 0; i < ge->b; i++)
            for (int64_t j = 0; j < ge->a; j++)
                fwd_task(ge, query_head(ge, o, i, j), lse + (i * ge->a + j) * ge->s_q, query_head(ge, q, i, j),
                         key_head(k, i, j / r), key_head(v, i, j / r), i, j, n * task, min64((n + 1) * task, ge->s_q),
                         d, &drop);
}

/*
 * Merge the attention of one query over two sets of keys:
 *   o = (w * o + w_part * o_part) / (w + w_part), w = exp(lse - m), w_part = exp(lse_part - m), m = max(lse, lse_part)
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

void MEG_FN(attn_merge)(struct meg_stream *st, const struct meg_attn_geom *ge, struct meg_heads o, float *lse,
                        struct meg_heads o_part, const float *lse_part)
{
    (void)st;
    MEG_ASSERT_EQ(o.dtype, MEG_DTYPE_F32);
    MEG_ASSERT_EQ(o_part.dtype, MEG_DTYPE_F32);
#pragma omp parallel for collapse(2) schedule(static)
    for (int64_t i = 0; i < ge->b; i++)
        for (int64_t j = 0; j < ge->a; j++) {
            const struct view to = query_head(ge, o, i, j), from = query_head(ge, o_part, i, j);
            const int64_t at = (i * ge->a + j) * ge->s_q;
            for (int64_t t = 0; t < ge->s_q; t++)
                merge_row(row32(to, t), lse + at + t, row32(from, t), lse_part[at + t], ge->d);
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

void MEG_FN(attn_delta)(struct meg_stream *st, const struct meg_attn_geom *ge, float *delta, struct meg_heads d_o,
                        struct meg_heads o)
{
    (void)st;
#pragma omp parallel for collapse(2) schedule(static)
    for (int64_t i = 0; i < ge->b; i++)
        for (int64_t j = 0; j < ge->a; j++) {
            const struct view x = query_head(ge, d_o, i, j), y = query_head(ge, o, i, j);
            float a[PACK_FLOATS / 8], b[PACK_FLOATS / 8];
            MEG_ASSERT_LE(8 * ge->d, PACK_FLOATS);
            for (int64_t t = 0; t < ge->s_q; t++) {
                pack(a, x, t, 1, ge->d);
                pack(b, y, t, 1, ge->d);
                delta[(i * ge->a + j) * ge->s_q + t] = dot(a, b, ge->d);
            }
        }
}

/* The operands of one head in the backward pass.  If delta is NULL, it is computed from d_o and o. */
struct bwd {
    struct view dq, dk, dv, d_o, o, q, k, v;
    const float *lse, *delta;
};

/*
 * For one query, replace the scores s [nk] by the attention weights after dropout.  Replace dp = d_o v^T by the
 * gradient of the scores.
 */
static void bwd_row(float *s, float *dp, struct key_range keys, int64_t nk, float scale, float lse, float delta,
                    const float *factor)
{
    for (int64_t k = 0; k < keys.lo; k++)
        s[k] = dp[k] = 0.0f;
    if (factor) {
#pragma omp simd
        for (int64_t k = keys.lo; k < keys.hi; k++) {
            const float p = vexp(scale * s[k] - lse);
            s[k] = p * factor[k];
            dp[k] = scale * p * (dp[k] * factor[k] - delta);
        }
    } else {
#pragma omp simd
        for (int64_t k = keys.lo; k < keys.hi; k++) {
            const float p = vexp(scale * s[k] - lse);
            s[k] = p;
            dp[k] = scale * p * (dp[k] - delta);
        }
    }
    for (int64_t k = keys.hi; k < nk; k++)
        s[k] = dp[k] = 0.0f;
}

/* Compute delta [n] of queries [t0, t0 + n) from the packed d_o and from o. */
static void compute_delta(float *delta, const float *d_o, struct view o, int64_t t0, int64_t n, int64_t d)
{
    float o_row[PACK_FLOATS / 8];
    for (int64_t t = 0; t < n; t++) {
        pack(o_row, o, t0 + t, 1, d);
        delta[t] = dot(d_o + t * d, o_row, d);
    }
}

/* Add the contribution of one tile to dq, dk and dv; k and v are packed. */
static void bwd_tile(const struct meg_attn_geom *ge, const struct bwd *w, const struct tile *x, const float *k,
                     const float *v, const struct meg_drop *d, const struct dropout *drop)
{
    float s[BQ * BK] __attribute__((aligned(64))), dp[BQ * BK] __attribute__((aligned(64)));
    float q[PACK_FLOATS] __attribute__((aligned(64))), d_o[PACK_FLOATS] __attribute__((aligned(64)));
    float delta_buf[BQ];
    struct drop_buf buf;
    const int64_t nq = x->nq, nk = x->nk, t0 = x->t0, n = ge->d;
    const float *delta = w->delta ? w->delta + t0 : delta_buf;
    pack(q, w->q, t0, nq, n);
    pack(d_o, w->d_o, t0, nq, n);
    if (!w->delta)
        compute_delta(delta_buf, d_o, w->o, t0, nq, n);
    meg_cpu_gemm('N', 'T', nq, nk, n, 1.0f, q, n, k, n, 0.0f, s, BK);
    meg_cpu_gemm('N', 'T', nq, nk, n, 1.0f, d_o, n, v, n, 0.0f, dp, BK);
    for (int64_t t = 0; t < nq; t++)
        bwd_row(s + t * BK, dp + t * BK, visible_in_tile(ge, x, t), nk, ge->scale, w->lse[t0 + t], delta[t],
                drop_in_tile(&buf, ge, d, drop, x, t));
    meg_cpu_gemm('T', 'N', nk, n, nq, 1.0f, s, BK, d_o, n, 1.0f, row32(w->dv, x->k0), w->dv.ld);
    meg_cpu_gemm('T', 'N', nk, n, nq, 1.0f, dp, BK, q, n, 1.0f, row32(w->dk, x->k0), w->dk.ld);
    meg_cpu_gemm('N', 'N', nq, n, nk, 1.0f, dp, BK, k, n, 1.0f, row32(w->dq, t0), w->dq.ld);
}

/*
 * Return the f32 view in which to sum n rows of the gradient x: x itself if x is f32, else buf [n,d].  The sums begin
 * with the values of x if accumulate is set, and with 0 otherwise.
 */
static struct view begin_sum(struct view x, float *buf, int64_t n, int64_t d, int accumulate)
{
    const struct view sum = x.dtype == MEG_DTYPE_F32 ? x : (struct view){ (char *)buf, MEG_DTYPE_F32, d };
    for (int64_t t = 0; t < n; t++)
        if (!accumulate)
            memset(row32(sum, t), 0, (size_t)d * sizeof(float));
        else if (sum.p != x.p)
            MEG_FN(to_f32)(row32(sum, t), row(x, t), x.dtype, d);
    return sum;
}

/* Round the sums of begin_sum to the type of x. */
static void end_sum(struct view x, struct view sum, int64_t n, int64_t d)
{
    for (int64_t t = 0; t < n && sum.p != x.p; t++)
        MEG_FN(from_f32)(row(x, t), x.dtype, row32(sum, t), d);
}

static void bwd_head(const struct meg_attn_geom *ge, const struct bwd *w, int64_t i, int64_t j,
                     const struct meg_drop *d, const struct dropout *drop)
{
    float kp[PACK_FLOATS] __attribute__((aligned(64))), vp[PACK_FLOATS] __attribute__((aligned(64)));
    const int64_t bk = rows_of_pack(BK, ge->d), bq = rows_of_pack(BQ, ge->d);
    for (int64_t k0 = 0; k0 < ge->s_k; k0 += bk) {
        pack(kp, w->k, k0, min64(bk, ge->s_k - k0), ge->d);
        pack(vp, w->v, k0, min64(bk, ge->s_k - k0), ge->d);
        for (int64_t t0 = 0; t0 < ge->s_q; t0 += bq) {
            const int64_t nq = min64(bq, ge->s_q - t0);
            const struct key_range visible = visible_to_any(ge, t0, t0 + nq, i);
            const struct tile x = { i, j, t0, nq, k0, min64(bk, visible.hi - k0) };
            if (visible.lo < k0 + bk && x.nk > 0)
                bwd_tile(ge, w, &x, kp, vp, d, drop);
        }
    }
}

/* Compute the gradients of one group of sequence i; buf is the memory for sums of bf16 and f16 gradients. */
static void bwd_group(const struct meg_attn_geom *ge, const struct meg_attn_bwd_args *x, int64_t i, int64_t grp,
                      const struct meg_drop *d, const struct dropout *drop, float *buf)
{
    const int64_t r = ge->a / ge->g;
    const struct view dk = key_head(x->dk, i, grp), dv = key_head(x->dv, i, grp);
    float *dq_buf = buf, *dk_buf = dq_buf + ge->s_q * ge->d, *dv_buf = dk_buf + ge->s_k * ge->d;
    struct bwd w = { .dk = begin_sum(dk, dk_buf, ge->s_k, ge->d, x->accumulate),
                     .dv = begin_sum(dv, dv_buf, ge->s_k, ge->d, x->accumulate),
                     .k = key_head(x->k, i, grp),
                     .v = key_head(x->v, i, grp) };
    for (int64_t j = grp * r; j < (grp + 1) * r; j++) {
        const struct view dq = query_head(ge, x->dq, i, j);
        w.dq = begin_sum(dq, dq_buf, ge->s_q, ge->d, x->accumulate);
        w.d_o = query_head(ge, x->d_o, i, j);
        w.q = query_head(ge, x->q, i, j);
        w.lse = x->lse + (i * ge->a + j) * ge->s_q;
        w.o = query_head(ge, x->o, i, j);
        w.delta = x->delta ? x->delta + (i * ge->a + j) * ge->s_q : NULL;
        bwd_head(ge, &w, i, j, d, drop);
        end_sum(dq, w.dq, ge->s_q, ge->d);
    }
    end_sum(dk, w.dk, ge->s_k, ge->d);
    end_sum(dv, w.dv, ge->s_k, ge->d);
}

void MEG_FN(attn_bwd)(struct meg_stream *st, const struct meg_attn_geom *ge, const struct meg_attn_bwd_args *x,
                      const struct meg_drop *d)
{
    const struct dropout drop = drop_begin(d);
    const bool is_f32 = x->dq.dtype == MEG_DTYPE_F32 && x->dk.dtype == MEG_DTYPE_F32 && x->dv.dtype == MEG_DTYPE_F32;
    const int64_t rows = is_f32 ? 0 : ge->s_q + 2 * ge->s_k;
    (void)st;
    MEG_ASSERT_EQ(ge->a % ge->g, 0);
    MEG_ASSERT_LE(ge->k0 + ge->s_k, ge->s);
    meg_cpu_gemm_load();
#pragma omp parallel
    {
        float *buf = meg_new((size_t)(rows * ge->d) * sizeof *buf);
#pragma omp for collapse(2) schedule(dynamic)
        for (int64_t i = 0; i < ge->b; i++)
            for (int64_t grp = 0; grp < ge->g; grp++)
                bwd_group(ge, x, i, grp, d, &drop, buf);
        free(buf);
    }
}
