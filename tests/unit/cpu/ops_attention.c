/*
 * ops_attention.c - attention against f64: full and causal, packed documents, groups, dropout, decoding, bf16 and f16,
 * and chunks of the keys that are merged.  Gradients are checked against central differences.
 */
#include "ops.h"
#include "tensor/half.h"

/*
 * A test problem with queries, keys and values in rows, grouped as in a model.  The values of q, kv and d_o are exact
 * in dtype, the type that the operations read.
 */
struct attn {
    struct meg_attn_geom ge;
    enum meg_dtype dtype;
    struct meg_drop drop;
    int64_t *sample;
    int32_t *doc;
    /* r: heads per group; ldq: elements per row of q and o; ldk: elements per row of k and v */
    int64_t r, ldq, ldk;
    float *q, *kv, *o, *lse; /* a row of kv has a key and a value head for each group */
    float *d_o, *dq, *dkv, *delta;
    double *q64, *kv64;
    void *qt, *kvt, *d_ot; /* q, kv, d_o in dtype */
};

/* Return the geometry of s_q queries from position q0 on, in sequences of s_k keys. */
static struct meg_attn_geom geom(int64_t s_q, int64_t s_k, int64_t b, int64_t a, int64_t g, int64_t d, int64_t q0,
                                 int is_causal, float scale)
{
    return (struct meg_attn_geom){ .s_q = s_q,
                                   .s_k = s_k,
                                   .b = b,
                                   .a = a,
                                   .g = g,
                                   .d = d,
                                   .s = s_k,
                                   .q0 = q0,
                                   .is_causal = is_causal,
                                   .scale = scale };
}

static struct meg_heads queries_in(const struct attn *a, void *p, enum meg_dtype t)
{
    const int64_t d = a->ge.d;
    return (struct meg_heads){ p, t, a->ge.b * a->ldq, a->ldq, a->r * d, d };
}

static struct meg_heads queries(const struct attn *a, float *p)
{
    return queries_in(a, p, MEG_DTYPE_F32);
}

static struct meg_heads keys_in(const struct attn *a, void *p, enum meg_dtype t, int64_t value)
{
    const int64_t d = a->ge.d;
    return (
        struct meg_heads){ (char *)p + (size_t)(value * d) * meg_dtype_size(t), t, a->ge.b * a->ldk, a->ldk, 2 * d, 0 };
}

static struct meg_heads keys(const struct attn *a, float *p, int64_t value)
{
    return keys_in(a, p, MEG_DTYPE_F32, value);
}

/* Return the heads from token t on. */
static struct meg_heads heads_from(struct meg_heads x, int64_t t)
{
    x.p = (char *)x.p + (size_t)(t * x.ld_s) * meg_dtype_size(x.dtype);
    return x;
}

/* Round x to the values of type t, and return an allocated copy in type t. */
static void *round_to(float *x, int64_t n, enum meg_dtype t)
{
    uint16_t *h = zeros(n, meg_dtype_size(t));
    for (int64_t i = 0; i < n; i++)
        if (t == MEG_DTYPE_F32)
            ((float *)(void *)h)[i] = x[i];
        else if (t == MEG_DTYPE_BF16)
            x[i] = meg_from_bf16(h[i] = meg_to_bf16(x[i]));
        else
            x[i] = meg_from_f16(h[i] = meg_to_f16(x[i]));
    return h;
}

static struct attn attn_in(enum meg_dtype t, struct meg_attn_geom ge, int has_docs, float p_drop)
{
    struct attn a = { .ge = ge, .dtype = t, .r = ge.a / ge.g };
    const int64_t nq = ge.s_q * ge.b, nk = ge.s_k * ge.b;
    a.ldq = ge.a * ge.d + 5;
    a.ldk = ge.g * 2 * ge.d + 3;
    a.q = rnd_new(nq * a.ldq);
    a.d_o = rnd_new(nq * a.ldq);
    a.kv = rnd_new(nk * a.ldk);
    a.qt = round_to(a.q, nq * a.ldq, t);
    a.d_ot = round_to(a.d_o, nq * a.ldq, t);
    a.kvt = round_to(a.kv, nk * a.ldk, t);
    a.o = rnd_new(nq * a.ldq);
    a.dq = rnd_new(nq * a.ldq);
    a.dkv = rnd_new(nk * a.ldk);
    a.lse = rnd_new(ge.b * ge.a * ge.s_q);
    a.delta = rnd_new(ge.b * ge.a * ge.s_q);
    a.sample = zeros(ge.b, sizeof *a.sample);
    for (int64_t i = 0; i < ge.b; i++)
        a.sample[i] = 4294967296 * i + 77;
    if (has_docs) { /* documents of 37 tokens, shifted by sequence */
        a.doc = zeros(nq, sizeof *a.doc);
        for (int64_t t0 = 0; t0 < ge.s_q; t0++)
            for (int64_t i = 0; i < ge.b; i++) {
                const int64_t start = (ge.q0 + t0 + i) / 37 * 37 - i;
                a.doc[t0 * ge.b + i] = start > 0 ? (int32_t)start : 0;
            }
        a.ge.doc_start = a.doc;
    }
    a.drop = (struct meg_drop){
        .p = p_drop, .seed = 1234, .layer = 3, .site = MEG_DROP_ATTN, .unit0 = 6, .b = ge.b, .sample = a.sample
    };
    a.q64 = to_f64(a.q, nq * a.ldq);
    a.kv64 = to_f64(a.kv, nk * a.ldk);
    return a;
}

static struct attn attn_new(struct meg_attn_geom ge, int has_docs, float p_drop)
{
    return attn_in(MEG_DTYPE_F32, ge, has_docs, p_drop);
}

static void attn_free(struct attn *a)
{
    void *const all[] = { a->q,   a->kv,   a->o,  a->lse, a->d_o,  a->dq,     a->dkv, a->delta,
                          a->q64, a->kv64, a->qt, a->kvt, a->d_ot, a->sample, a->doc };
    for (size_t i = 0; i < LEN(all); i++)
        free(all[i]);
}

/* Return the dropout factor of a key, from the definition in tensor/ops.h. */
static double keep64(const struct attn *a, int64_t t, int64_t i, int64_t j, int64_t k)
{
    return drop_factor64(&a->drop, (a->drop.unit0 + j) * ((a->ge.s_k + 7) / 8 * 8) + k, a->ge.q0 + t, a->sample[i]);
}

static int sees(const struct attn *a, int64_t t, int64_t i, int64_t k)
{
    return (!a->ge.is_causal || k <= a->ge.q0 + t) && (!a->doc || k >= a->doc[t * a->ge.b + i]);
}

/* Compute one output row o [d] of head j and its log-sum-exp. */
static double row64(const struct attn *a, int64_t t, int64_t i, int64_t j, double *o)
{
    const struct meg_attn_geom *ge = &a->ge;
    const double *q = a->q64 + (t * ge->b + i) * a->ldq + j * ge->d;
    const double *kv = a->kv64 + i * a->ldk + j / a->r * 2 * ge->d;
    double sum = 0.0;
    memset(o, 0, (size_t)ge->d * sizeof *o);
    for (int64_t k = 0; k < ge->s_k; k++) {
        const double *key = kv + k * ge->b * a->ldk;
        double s = 0.0, p;
        if (!sees(a, t, i, k))
            continue;
        for (int64_t c = 0; c < ge->d; c++)
            s += q[c] * key[c];
        p = exp(ge->scale * s);
        sum += p;
        p *= keep64(a, t, i, j, k);
        for (int64_t c = 0; c < ge->d; c++)
            o[c] += p * key[ge->d + c];
    }
    for (int64_t c = 0; c < ge->d; c++)
        o[c] /= sum;
    return log(sum);
}

static double loss(void *arg)
{
    const struct attn *a = arg;
    double o[256], s = 0.0;
    for (int64_t t = 0; t < a->ge.s_q; t++)
        for (int64_t i = 0; i < a->ge.b; i++)
            for (int64_t j = 0; j < a->ge.a; j++) {
                row64(a, t, i, j, o);
                for (int64_t c = 0; c < a->ge.d; c++)
                    s += o[c] * a->d_o[(t * a->ge.b + i) * a->ldq + j * a->ge.d + c];
            }
    return s;
}

/* Compute the gradients dq and dkv of type t from o and lse; if delta is not NULL, from delta instead of o. */
static void backward(const struct meg_ops *ops, const struct attn *a, void *dq, void *dkv, enum meg_dtype t,
                     int accumulate, const float *delta)
{
    const struct meg_attn_bwd_args args = { .dq = queries_in(a, dq, t),
                                            .dk = keys_in(a, dkv, t, 0),
                                            .dv = keys_in(a, dkv, t, 1),
                                            .accumulate = accumulate,
                                            .d_o = queries_in(a, a->d_ot, a->dtype),
                                            .o = queries(a, delta ? NULL : a->o),
                                            .lse = a->lse,
                                            .delta = delta,
                                            .q = queries_in(a, a->qt, a->dtype),
                                            .k = keys_in(a, a->kvt, a->dtype, 0),
                                            .v = keys_in(a, a->kvt, a->dtype, 1) };
    ops->attn_bwd(NULL, &a->ge, &args, &a->drop);
}

static void run(const struct meg_ops *ops, struct attn *a, uint64_t *h)
{
    const int64_t nq = a->ge.s_q * a->ge.b * a->ldq, nk = a->ge.s_k * a->ge.b * a->ldk;
    const struct meg_heads q = queries_in(a, a->qt, a->dtype);
    const struct meg_heads k = keys_in(a, a->kvt, a->dtype, 0), v = keys_in(a, a->kvt, a->dtype, 1);
    ops->attn_fwd(NULL, &a->ge, queries(a, a->o), a->lse, q, k, v, &a->drop);
    backward(ops, a, a->dq, a->dkv, MEG_DTYPE_F32, 0, NULL);
    digest(h, a->o, (size_t)nq * 4);
    digest(h, a->lse, (size_t)(a->ge.b * a->ge.a * a->ge.s_q) * 4);
    digest(h, a->dq, (size_t)nq * 4);
    digest(h, a->dkv, (size_t)nk * 4);
}

static void check_forward(const struct attn *a)
{
    double want[256];
    const double root = sqrt((double)a->ge.s_k);
    for (int64_t t = 0; t < a->ge.s_q; t++)
        for (int64_t i = 0; i < a->ge.b; i++)
            for (int64_t j = 0; j < a->ge.a; j++) {
                /* scores are below sqrt(d) and exact to d half ulps of that; so are the weights of the mean */
                const double tol = (8.0 + root + (double)a->ge.d) * EPS;
                const double lse = row64(a, t, i, j, want);
                near(a->lse[(i * a->ge.a + j) * a->ge.s_q + t], lse, tol * (1.0 + fabs(lse)), "lse", t, j);
                for (int64_t c = 0; c < a->ge.d; c++)
                    near(a->o[(t * a->ge.b + i) * a->ldq + j * a->ge.d + c], want[c], 2.0 * tol, "o", t, c);
            }
}

/* Columns of padding between rows are not part of any sum, and their gradients are not checked. */
static void check_backward(struct attn *a, int64_t samples)
{
    const int64_t d = a->ge.d;
    struct fd f = { loss, a, (64.0 + (double)(d + a->ge.s_q * a->r)) * EPS + 1e-8, MEG_DTYPE_F32 };
    for (int64_t n = 0; n < samples; n++) {
        const int64_t q = a->ge.s_q * a->ge.b, k = a->ge.s_k * a->ge.b;
        const int64_t at_q =
            (int64_t)((rnd() + 1) / 2 * (double)q) * a->ldq + (int64_t)((rnd() + 1) / 2 * (double)(a->ge.a * d));
        const int64_t at_k =
            (int64_t)((rnd() + 1) / 2 * (double)k) * a->ldk + (int64_t)((rnd() + 1) / 2 * (double)(a->ge.g * 2 * d));
        fd_check(&f, a->q64 + at_q, 1, a->dq + at_q, 1, "dq");
        fd_check(&f, a->kv64 + at_k, 1, a->dkv + at_k, 1, "dk or dv");
    }
}

static void all_of(const struct meg_ops *ops, struct meg_attn_geom ge, int has_docs, float p_drop, int64_t samples)
{
    struct attn a = attn_new(ge, has_docs, p_drop);
    uint64_t h[2] = { 0, 0 };
    for (int k = 0; k < 2; k++) {
        omp_set_num_threads(k ? 2 : 1);
        run(ops, &a, h + k);
    }
    assert_int_equal(h[0], h[1]);
    check_forward(&a);
    check_backward(&a, samples);
    attn_free(&a);
}

static void small(const struct meg_ops *ops)
{
    for (int causal = 0; causal < 2; causal++)
        for (int docs = 0; docs <= causal; docs++)
            for (int drop = 0; drop < 2; drop++) {
                all_of(ops, geom(1, 1, 1, 1, 1, 1, 0, causal, 1.0f), docs, 0.0f, 1);
                all_of(ops, geom(13, 13, 2, 4, 4, 7, 0, causal, 0.4f), docs, (float)drop * 0.1f, 60);
                all_of(ops, geom(45, 45, 3, 6, 2, 16, 0, causal, 0.25f), docs, (float)drop * 0.3f, 30);
            }
}

static void many_tiles(const struct meg_ops *ops)
{
    all_of(ops, geom(530, 530, 1, 2, 1, 8, 0, 1, 0.3f), 0, 0.2f, 6);
    all_of(ops, geom(530, 530, 2, 1, 1, 8, 0, 1, 0.3f), 1, 0.2f, 40);
    all_of(ops, geom(140, 600, 1, 1, 1, 12, 0, 0, 0.3f), 0, 0.0f, 6);
}

/* Test queries at the end of sequences whose keys are in a cache. */
static void decoding(const struct meg_ops *ops)
{
    all_of(ops, geom(1, 301, 2, 4, 2, 64, 300, 1, 0.125f), 0, 0.0f, 10);
    all_of(ops, geom(1, 9, 3, 6, 6, 80, 8, 1, 0.125f), 0, 0.0f, 10);
    all_of(ops, geom(5, 301, 1, 2, 2, 33, 296, 1, 0.125f), 1, 0.0f, 10);
    all_of(ops, geom(1, 1000, 1, 2, 1, 16, 700, 1, 0.125f), 0, 0.0f, 10);
}

/*
 * Attend queries [t0, t1) to chunks of the keys: merge the outputs, sum the gradients.  The first chunks may be
 * invisible to the queries.
 */
static void run_rows_in_chunks(const struct meg_ops *ops, struct attn *a, int64_t t0, int64_t t1, const int64_t *bound,
                               int nchunks)
{
    struct meg_attn_geom ge = a->ge;
    const int64_t n = t1 - t0, rows = ge.b * ge.a;
    float *o_part = rnd_new(ge.s_q * ge.b * a->ldq), *stats = rnd_new(3 * rows * n);
    float *lse = stats, *lse_part = stats + rows * n, *delta = stats + 2 * rows * n;
    const struct meg_heads q = heads_from(queries_in(a, a->qt, a->dtype), t0), o = heads_from(queries(a, a->o), t0);
    const struct meg_heads d_o = heads_from(queries_in(a, a->d_ot, a->dtype), t0);

    ge.s_q = n;
    ge.q0 += t0;
    ge.doc_start = a->doc ? a->doc + t0 * ge.b : NULL;
    for (int bwd = 0; bwd < 2; bwd++) {
        for (int p = nchunks - 2; p >= 0; p--) {
            const struct meg_heads k = heads_from(keys_in(a, a->kvt, a->dtype, 0), bound[p]);
            const struct meg_heads v = heads_from(keys_in(a, a->kvt, a->dtype, 1), bound[p]);
            ge.k0 = bound[p];
            ge.s_k = bound[p + 1] - bound[p];
            if (bwd) {
                const struct meg_attn_bwd_args args = { .dq = heads_from(queries(a, a->dq), t0),
                                                        .dk = heads_from(keys(a, a->dkv, 0), bound[p]),
                                                        .dv = heads_from(keys(a, a->dkv, 1), bound[p]),
                                                        .accumulate = 1,
                                                        .d_o = d_o,
                                                        .lse = lse,
                                                        .delta = delta,
                                                        .q = q,
                                                        .k = k,
                                                        .v = v };
                ops->attn_bwd(NULL, &ge, &args, &a->drop);
            } else if (p == nchunks - 2) {
                ops->attn_fwd(NULL, &ge, o, lse, q, k, v, &a->drop);
            } else {
                ops->attn_fwd(NULL, &ge, queries(a, o_part), lse_part, q, k, v, &a->drop);
                ops->attn_merge(NULL, &ge, o, lse, queries(a, o_part), lse_part);
            }
        }
        ops->attn_delta(NULL, &ge, delta, d_o, o);
    }
    for (int64_t r = 0; r < rows; r++)
        memcpy(a->lse + r * a->ge.s_q + t0, lse + r * n, (size_t)n * sizeof *lse);
    free(o_part);
    free(stats);
}

static void in_chunks(const struct meg_ops *ops, struct meg_attn_geom ge, int has_docs, float p_drop,
                      const int64_t *bound, int nchunks, int64_t samples)
{
    struct attn a = attn_new(ge, has_docs, p_drop);
    memset(a.dq, 0, (size_t)(ge.s_q * ge.b * a.ldq) * sizeof *a.dq);
    memset(a.dkv, 0, (size_t)(ge.s_k * ge.b * a.ldk) * sizeof *a.dkv);
    for (int p = 0; p < nchunks - 1; p++)
        run_rows_in_chunks(ops, &a, bound[p], bound[p + 1], bound, nchunks);
    check_forward(&a);
    check_backward(&a, samples);
    attn_free(&a);
}

static void chunks_of_keys_merge(const struct meg_ops *ops)
{
    static const int64_t fours[] = { 0, 4, 8, 12, 16, 20, 24, 28, 32 }, odd[] = { 0, 3, 50, 51, 61 };
    static const int64_t long_ones[] = { 0, 300, 620 };
    for (int causal = 0; causal < 2; causal++)
        for (int docs = 0; docs <= causal; docs++) {
            in_chunks(ops, geom(32, 32, 2, 8, 4, 8, 0, causal, 0.35f), docs, 0.2f, fours, LEN(fours), 40);
            in_chunks(ops, geom(61, 61, 3, 2, 2, 7, 0, causal, 0.4f), docs, 0.1f, odd, LEN(odd), 40);
        }
    in_chunks(ops, geom(620, 620, 1, 2, 1, 16, 0, 1, 0.25f), 0, 0.1f, long_ones, LEN(long_ones), 3);
}

/* Queries without a visible key have o = 0 and lse = -infinity, and merging these changes nothing. */
static void keys_that_no_query_sees(const struct meg_ops *ops)
{
    struct meg_attn_geom ge = geom(9, 12, 2, 4, 2, 8, 0, 1, 0.35f);
    struct attn a = attn_new(ge, 0, 0.1f);
    const int64_t nq = 9 * 2 * a.ldq, nlse = 2 * 4 * 9;
    float *o = rnd_new(nq), *lse = rnd_new(nlse), *o_before = copy_new(o, nq), *lse_before = copy_new(lse, nlse);
    uint64_t h = 0;
    a.ge.s = 24;
    a.ge.k0 = 9;
    run(ops, &a, &h);
    for (int64_t i = 0; i < nlse; i++)
        assert_true(a.lse[i] == -INFINITY);
    for (int64_t t = 0; t < 9 * 2; t++)
        for (int64_t c = 0; c < 4 * 8; c++)
            assert_true(a.o[t * a.ldq + c] == 0.0f && a.dq[t * a.ldq + c] == 0.0f);
    for (int64_t t = 0; t < 12 * 2; t++)
        for (int64_t c = 0; c < 2 * 2 * 8; c++)
            assert_true(a.dkv[t * a.ldk + c] == 0.0f);
    ops->attn_merge(NULL, &a.ge, queries(&a, o), lse, queries(&a, a.o), a.lse);
    assert_memory_equal(o, o_before, (size_t)nq * sizeof *o);
    assert_memory_equal(lse, lse_before, (size_t)nlse * sizeof *lse);
    ops->attn_merge(NULL, &a.ge, queries(&a, a.o), a.lse, queries(&a, o), lse); /* in the reverse order */
    for (int64_t t = 0; t < 9 * 2; t++)
        assert_memory_equal(a.o + t * a.ldq, o + t * a.ldq, 4 * 8 * sizeof *o);
    assert_memory_equal(a.lse, lse, (size_t)nlse * sizeof *lse);
    ops->attn_merge(NULL, &a.ge, queries(&a, o), lse, queries(&a, a.o),
                    a.lse); /* the merge of equal outputs is their mean */
    for (int64_t i = 0; i < nlse; i++)
        near(lse[i], a.lse[i] + log(2.0), 4 * EPS, "lse of equals", i, 0);
    free(o);
    free(lse);
    free(o_before);
    free(lse_before);
    attn_free(&a);
}

/* bf16 and f16 inputs are converted exactly; outputs are rounded once. */
static void half_types(const struct meg_ops *ops)
{
    static const enum meg_dtype types[] = { MEG_DTYPE_BF16, MEG_DTYPE_F16 };
    for (size_t n = 0; n < LEN(types); n++) {
        struct attn a = attn_in(types[n], geom(300, 300, 2, 4, 2, 24, 0, 1, 0.25f), 1, 0.1f);
        const int64_t nq = 300 * 2 * a.ldq;
        void *o = zeros(nq, 2), *want;
        uint64_t h = 0;
        run(ops, &a, &h);
        check_forward(&a);
        check_backward(&a, 5);
        ops->attn_fwd(NULL, &a.ge, queries_in(&a, o, types[n]), a.lse, queries_in(&a, a.qt, types[n]),
                      keys_in(&a, a.kvt, types[n], 0), keys_in(&a, a.kvt, types[n], 1), &a.drop);
        want = round_to(a.o, nq, types[n]);
        for (int64_t t = 0; t < 300 * 2; t++)
            assert_memory_equal((uint16_t *)o + t * a.ldq, (uint16_t *)want + t * a.ldq, 4 * 24 * 2);
        ops->attn_delta(NULL, &a.ge, a.delta, queries_in(&a, a.d_ot, types[n]), queries_in(&a, o, types[n]));
        for (int64_t r = 0; r < 300 * 2 * 4; r++) {
            const int64_t t = r % 300, at = (t * 2 + r / 300 / 4) * a.ldq + r / 300 % 4 * 24;
            double sum = 0.0;
            for (int64_t c = 0; c < 24; c++)
                sum += (double)a.o[at + c] * (double)a.d_o[at + c];
            near(a.delta[r], sum, 24 * EPS, "delta", r, 0);
        }
        free(o);
        free(want);
        attn_free(&a);
    }
}

/*
 * Gradients in bf16 and f16 are the f32 gradients rounded once.  With accumulate, the sum of the previous value and the
 * gradient is rounded.
 */
static void half_gradients(const struct meg_ops *ops)
{
    static const enum meg_dtype types[] = { MEG_DTYPE_BF16, MEG_DTYPE_F16 };
    for (size_t n = 0; n < LEN(types); n++)
        for (int accumulate = 0; accumulate < 2; accumulate++) {
            const enum meg_dtype t = types[n];
            struct attn a = attn_in(t, geom(300, 300, 2, 6, 2, 24, 0, 1, 0.25f), 1, 0.1f);
            const int64_t nq = 300 * 2 * a.ldq, nk = 300 * 2 * a.ldk;
            void *dq = round_to(a.dq, nq, t), *dkv = round_to(a.dkv, nk, t), *dq_want, *dkv_want;
            float *dq32 = copy_new(a.dq, nq), *dkv32 = copy_new(a.dkv, nk);
            uint64_t h = 0;
            run(ops, &a, &h);
            check_backward(&a, 5);
            backward(ops, &a, dq, dkv, t, accumulate, NULL);
            backward(ops, &a, dq32, dkv32, MEG_DTYPE_F32, accumulate, NULL);
            dq_want = round_to(dq32, nq, t);
            dkv_want = round_to(dkv32, nk, t);
            assert_memory_equal(dq, dq_want, (size_t)nq * 2);
            assert_memory_equal(dkv, dkv_want, (size_t)nk * 2);
            free(dq);
            free(dkv);
            free(dq32);
            free(dkv32);
            free(dq_want);
            free(dkv_want);
            attn_free(&a);
        }
}

/* The gradients are the same whether attn_delta or attn_bwd computes delta. */
static void delta_given(const struct meg_ops *ops)
{
    struct attn a = attn_new(geom(300, 300, 2, 6, 2, 24, 0, 1, 0.25f), 1, 0.1f);
    const int64_t nq = 300 * 2 * a.ldq, nk = 300 * 2 * a.ldk;
    float *dq = copy_new(a.dq, nq), *dkv = copy_new(a.dkv, nk);
    uint64_t h = 0;
    run(ops, &a, &h);
    ops->attn_delta(NULL, &a.ge, a.delta, queries(&a, a.d_o), queries(&a, a.o));
    backward(ops, &a, dq, dkv, MEG_DTYPE_F32, 0, a.delta);
    assert_memory_equal(dq, a.dq, (size_t)nq * sizeof *dq);
    assert_memory_equal(dkv, a.dkv, (size_t)nk * sizeof *dkv);
    free(dq);
    free(dkv);
    attn_free(&a);
}

/* Half of the heads, computed with their global index, have the same outputs as among all heads. */
static void shard_of_heads(const struct meg_ops *ops)
{
    struct attn a = attn_new(geom(50, 50, 2, 4, 2, 8, 0, 1, 0.35f), 0, 0.25f);
    struct attn b = a;
    uint64_t h = 0;
    float *o;
    run(ops, &a, &h);
    o = copy_new(a.o, 50 * 2 * a.ldq);
    b.ge.a = 2;
    b.ge.g = 1;
    b.drop.unit0 += 2;
    b.q += 2 * 8;
    b.kv += 2 * 8;
    b.o += 2 * 8;
    ops->attn_fwd(NULL, &b.ge, queries(&b, b.o), b.lse, queries(&b, b.q), keys(&b, b.kv, 0), keys(&b, b.kv, 1),
                  &b.drop);
    assert_memory_equal(o, a.o, (size_t)(50 * 2 * a.ldq) * 4);
    free(o);
    attn_free(&a);
}

static void nan_propagates(const struct meg_ops *ops)
{
    struct attn a = attn_new(geom(40, 40, 1, 1, 1, 8, 0, 1, 0.35f), 0, 0.0f);
    float *kv = a.kvt;
    const float bad[] = { NAN, INFINITY, -INFINITY };
    for (size_t n = 0; n < LEN(bad); n++) {
        uint64_t h = 0;
        kv[20 * a.ldk + 3] = bad[n]; /* a key that is visible to queries from 20 on */
        run(ops, &a, &h);
        for (int64_t t = 0; t < 40; t++)
            for (int64_t c = 0; c < 8; c++)
                if (t < 20)
                    assert_true(isfinite(a.o[t * a.ldq + c]));
                else if (isnan(bad[n]) || a.q[t * a.ldq + 3] * bad[n] > 0)
                    assert_true(isnan(a.o[t * a.ldq + c])); /* a score of -infinity has weight 0 */
    }
    kv[20 * a.ldk + 3] = 0.5f;
    kv[20 * a.ldk + 8 + 3] = NAN; /* a value, which affects one column */
    {
        uint64_t h = 0;
        run(ops, &a, &h);
    }
    for (int64_t t = 20; t < 40; t++)
        assert_true(isnan(a.o[t * a.ldq + 3]));
    for (int64_t c = 0; c < 8; c++)
        assert_true(isnan(a.dq[30 * a.ldq + c]));
    attn_free(&a);
}

int main(void)
{
    static const struct ops_case cases[] = {
        { "small shapes agree with f64", small },
        { "shapes of many tiles agree with f64", many_tiles },
        { "decoding attends to the keys in a cache", decoding },
        { "chunks of keys merge to the output of all keys", chunks_of_keys_merge },
        { "queries that see no key give 0", keys_that_no_query_sees },
        { "bf16 and f16 outputs are rounded once", half_types },
        { "bf16 and f16 gradients are rounded once", half_gradients },
        { "delta may be given or computed from o", delta_given },
        { "a shard of the heads gives the same outputs as all heads", shard_of_heads },
        { "NaN propagates to outputs and gradients", nan_propagates },
    };
    return run_cases(cases, LEN(cases));
}
