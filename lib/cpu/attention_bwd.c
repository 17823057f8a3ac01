/* isa: baseline v3 v4 */
/*
 * attention_bwd.c - the gradients of attention.  A task is one key-value group of one sequence, with all query heads of
 * the group.  A single thread therefore sums the group's dk and dv, in a fixed order.
 */
#include <omp.h>
#include "cpu/attention.h"

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
            const struct head x = query_head(desc, args->d_o, i, j), y = query_head(desc, args->o, i, j);
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
    struct head dq, dk, dv, d_o, o, q, k, v;
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
        if (plain)
            bwd_row(s + t * BK, dp + t * BK, &one, nk, desc->scale);
        else
            bwd_score_row(s + t * BK, dp + t * BK, d_bias + nq - 1 - t, bias + nq - 1 - t, &one, nk, desc);
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
static struct head begin_sum(struct head x, float *buf, int64_t n, int64_t d, int accumulate)
{
    const struct head sum =
        x.dtype == MEG_DTYPE_F32 ? x : (struct head){ .p = (char *)buf, .dtype = MEG_DTYPE_F32, .ld = d };
    for (int64_t t = 0; t < n; t++)
        if (!accumulate)
            memset(row32(sum, t), 0, (size_t)d * sizeof(float));
        else if (sum.p != x.p)
            MEG_FN(to_f32)(row32(sum, t), row(x, t), x.dtype, d);
    return sum;
}

/* Round `sum` into x, unless begin_sum returned x itself. */
static void end_sum(struct head x, struct head sum, int64_t n, int64_t d)
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
    const struct head dk = key_head(desc, x->dk, i, grp), dv = key_head(desc, x->dv, i, grp);
    float *dq_buf = buf, *dk_buf = dq_buf + desc->s_q * desc->d, *dv_buf = dk_buf + desc->s_k * desc->d;
    struct bwd w = { .dk = begin_sum(dk, dk_buf, desc->s_k, desc->d, x->accumulate),
                     .dv = begin_sum(dv, dv_buf, desc->s_k, desc->d_v, x->accumulate),
                     .k = key_head(desc, x->k, i, grp),
                     .v = key_head(desc, x->v, i, grp) };
    for (int64_t j = grp * r; j < (grp + 1) * r; j++) {
        const struct head dq = query_head(desc, x->dq, i, j);
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
