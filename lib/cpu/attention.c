/* isa: baseline v3 v4 */
/* attention.c - attention forward, whose tasks are blocks of queries of one head, and the merge of two outputs. */
#include "cpu/attention.h"

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
    const struct head o = query_head(desc, a->o, i, j), q = query_head(desc, a->q, i, j);
    const int64_t grp = j / (desc->a / desc->g), bk = rows_of_pack(BK, desc);
    const struct head k = key_head(desc, a->k, i, grp), v = key_head(desc, a->v, i, grp);
    const struct key_range visible = visible_to_any(desc, t0, t1, i);
    const struct running all = { op, max, sum };
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
        a->lse[(i * desc->a + j) * desc->s_q + t0 + t] = max[t] + logf(sum[t]);
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
            const struct head to = query_head(desc, a->o, i, j), from = query_head(desc, a->o_part, i, j);
            const int64_t at = (i * desc->a + j) * desc->s_q;
            for (int64_t t = 0; t < desc->s_q; t++)
                merge_row(row32(to, t), a->lse + at + t, row32(from, t), a->lse_part[at + t], desc->d_v);
        }
}
