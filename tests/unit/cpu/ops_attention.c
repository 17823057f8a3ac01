/*
 * ops_attention.c - attention and its gradients against f64: windows, packed documents, padding, groups, dropout,
 * softcap, biases, sinks, decoding, bf16 and f16, and chunks of the keys that are merged.
 */
#include "ops.h"
#include <float.h>
#include "tensor/half.h"

/* Which arrays of struct meg_attn_desc a test problem has. */
enum { DOCS = 1, LENGTHS = 2, ALIBI = 4, REL_BIAS = 8, SINK = 16 };

/*
 * A test problem with queries, keys and values in rows, grouped as in a model.  The values of q, kv, d_o, table and
 * sink are exact in dtype, the type that the operations read.
 */
struct attn {
    struct meg_attn_desc desc;
    enum meg_dtype dtype;
    struct meg_drop drop;
    int64_t *sample;
    int32_t *doc, *length;
    float *slope;
    /* r: query heads per group; ldq, ldo, ldk: elements per row of q, o and kv; vk: elements per group of a kv row */
    int64_t r, ldq, ldo, ldk, vk;
    float *q, *kv, *o, *lse; /* a row of kv has a key and a value head for each group */
    float *d_o, *dq, *dkv, *delta;
    float *table, *sink, *d_table, *d_sink; /* [BUCKETS, a + 1] and [a] */
    double *q64, *kv64, *table64, *sink64;
    void *qt, *kvt, *d_ot, *tablet, *sinkt; /* q, kv, d_o, table, sink in dtype */
};

enum { BUCKETS = 12, MAX_DISTANCE = 40 };

/* Return the descriptor of s_q queries from position q0 on, in sequences of s_k keys. */
static struct meg_attn_desc shape(int64_t s_q, int64_t s_k, int64_t b, int64_t a, int64_t g, int64_t d, int64_t q0,
                                  int is_causal, float scale)
{
    return (struct meg_attn_desc){ .s_q = s_q,
                                   .s_k = s_k,
                                   .b = b,
                                   .a = a,
                                   .g = g,
                                   .d = d,
                                   .d_v = d,
                                   .s = s_k,
                                   .q0 = q0,
                                   .scale = scale,
                                   .window_left = -1,
                                   .window_right = is_causal ? 0 : -1 };
}

static struct meg_heads queries_in(const struct attn *a, void *p, enum meg_dtype t)
{
    return (struct meg_heads){ p, t, a->desc.b * a->ldq, a->ldq, a->r * a->desc.d, a->desc.d };
}

static struct meg_heads queries(const struct attn *a, float *p)
{
    return queries_in(a, p, MEG_DTYPE_F32);
}

static struct meg_heads outputs_in(const struct attn *a, void *p, enum meg_dtype t)
{
    return (struct meg_heads){ p, t, a->desc.b * a->ldo, a->ldo, a->r * a->desc.d_v, a->desc.d_v };
}

static struct meg_heads outputs(const struct attn *a, float *p)
{
    return outputs_in(a, p, MEG_DTYPE_F32);
}

static struct meg_heads keys_in(const struct attn *a, void *p, enum meg_dtype t, int is_value)
{
    char *at = (char *)p + (size_t)(is_value ? a->desc.d : 0) * meg_dtype_size(t);
    return (struct meg_heads){ at, t, a->desc.b * a->ldk, a->ldk, a->vk, 0 };
}

static struct meg_heads keys(const struct attn *a, float *p, int is_value)
{
    return keys_in(a, p, MEG_DTYPE_F32, is_value);
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

static struct attn attn_in(enum meg_dtype t, struct meg_attn_desc desc, int arrays, float p_drop)
{
    struct attn a = { .desc = desc, .dtype = t, .r = desc.a / desc.g, .vk = desc.d + desc.d_v };
    const int64_t nq = desc.s_q * desc.b, nk = desc.s_k * desc.b, ntable = BUCKETS * (desc.a + 1);
    a.ldq = desc.a * desc.d + 5;
    a.ldo = desc.a * desc.d_v + 5;
    a.ldk = desc.g * a.vk + 3;
    a.q = rnd_new(nq * a.ldq);
    a.d_o = rnd_new(nq * a.ldo);
    a.kv = rnd_new(nk * a.ldk);
    a.qt = round_to(a.q, nq * a.ldq, t);
    a.d_ot = round_to(a.d_o, nq * a.ldo, t);
    a.kvt = round_to(a.kv, nk * a.ldk, t);
    a.o = rnd_new(nq * a.ldo);
    a.dq = rnd_new(nq * a.ldq);
    a.dkv = rnd_new(nk * a.ldk);
    a.lse = rnd_new(desc.b * desc.a * desc.s_q);
    a.delta = rnd_new(desc.b * desc.a * desc.s_q);
    a.sample = zeros(desc.b, sizeof *a.sample);
    for (int64_t i = 0; i < desc.b; i++)
        a.sample[i] = 4294967296 * i + 77;
    if (arrays & DOCS) { /* documents of 37 tokens, shifted by sequence */
        a.doc = zeros(nq, sizeof *a.doc);
        for (int64_t t0 = 0; t0 < desc.s_q; t0++)
            for (int64_t i = 0; i < desc.b; i++) {
                const int64_t start = (desc.q0 + t0 + i) / 37 * 37 - i;
                a.doc[t0 * desc.b + i] = start > 0 ? (int32_t)start : 0;
            }
        a.desc.doc_start = a.doc;
    }
    if (arrays & LENGTHS) { /* the first sequence has no keys */
        a.length = zeros(desc.b, sizeof *a.length);
        for (int64_t i = 0; i < desc.b; i++)
            a.length[i] = (int32_t)(desc.s_k * i / desc.b);
        a.desc.key_length = a.length;
    }
    if (arrays & ALIBI)
        a.desc.alibi_slope = a.slope = rnd_new(desc.a);
    a.table = rnd_new(ntable);
    a.sink = rnd_new(desc.a);
    a.d_table = rnd_new(ntable);
    a.d_sink = rnd_new(desc.a);
    a.tablet = round_to(a.table, ntable, t);
    a.sinkt = round_to(a.sink, desc.a, t);
    if (arrays & REL_BIAS) {
        a.desc.rel_bias = (struct meg_mat){ a.tablet, t, BUCKETS, desc.a, desc.a + 1 };
        a.desc.rel_bias_max_distance = MAX_DISTANCE;
        a.desc.rel_bias_is_bidirectional = desc.window_right != 0;
    }
    if (arrays & SINK)
        a.desc.sink = (struct meg_array){ a.sinkt, t };
    a.drop = (struct meg_drop){
        .p = p_drop, .seed = 1234, .layer = 3, .site = MEG_DROP_ATTN, .unit0 = 6, .b = desc.b, .sample = a.sample
    };
    a.q64 = to_f64(a.q, nq * a.ldq);
    a.kv64 = to_f64(a.kv, nk * a.ldk);
    a.table64 = to_f64(a.table, ntable);
    a.sink64 = to_f64(a.sink, desc.a);
    return a;
}

static struct attn attn_new(struct meg_attn_desc desc, int arrays, float p_drop)
{
    return attn_in(MEG_DTYPE_F32, desc, arrays, p_drop);
}

static void attn_free(struct attn *a)
{
    void *const all[] = { a->q,      a->kv,      a->o,       a->lse,    a->d_o,    a->dq,     a->dkv,
                          a->delta,  a->q64,     a->kv64,    a->qt,     a->kvt,    a->d_ot,   a->table,
                          a->sink,   a->d_table, a->table64, a->sink64, a->d_sink, a->tablet, a->sinkt,
                          a->sample, a->doc,     a->length,  a->slope };
    for (size_t i = 0; i < LEN(all); i++)
        free(all[i]);
}

/* Return the dropout factor of a key, from the definition in tensor/ops.h. */
static double keep64(const struct attn *a, int64_t t, int64_t i, int64_t j, int64_t k)
{
    return drop_factor64(&a->drop, (a->drop.unit0 + j) * ((a->desc.s_k + 7) / 8 * 8) + k, a->desc.q0 + t, a->sample[i]);
}

static int sees(const struct attn *a, int64_t t, int64_t i, int64_t k)
{
    const struct meg_attn_desc *desc = &a->desc;
    const int64_t position = desc->q0 + t;
    return (desc->window_left < 0 || k >= position - desc->window_left) &&
           (desc->window_right < 0 || k <= position + desc->window_right) &&
           (!a->doc || k >= a->doc[t * desc->b + i]) && (!a->length || k < a->length[i]);
}

/*
 * Return the bucket of T5, in the terms of tensor/ops.h: bucket e + m begins at the smallest distance that is at least
 * e * (max / e)^(m / (B - e)).
 */
static int64_t bucket64(int64_t buckets, int64_t max, int is_bidirectional, int64_t relative)
{
    const int64_t n = is_bidirectional ? buckets / 2 : buckets, e = n / 2;
    const int64_t distance = is_bidirectional ? llabs(relative) : relative < 0 ? -relative : 0;
    int64_t bucket = distance < e ? distance : e;
    while (distance >= e && bucket + 1 < n &&
           (double)distance >= e * pow((double)max / e, (double)(bucket + 1 - e) / (n - e)) - 1e-9)
        bucket++;
    return bucket + (is_bidirectional && relative > 0 ? n : 0);
}

/* Return the index in the table of the relative bias of key k for query t and head j. */
static int64_t bias_at(const struct attn *a, int64_t t, int64_t j, int64_t k)
{
    const struct meg_attn_desc *desc = &a->desc;
    return bucket64(BUCKETS, MAX_DISTANCE, desc->rel_bias_is_bidirectional, k - desc->q0 - t) * (desc->a + 1) + j;
}

static double score64(const struct attn *a, double qk, int64_t t, int64_t j, int64_t k)
{
    const struct meg_attn_desc *desc = &a->desc;
    const int64_t relative = k - desc->q0 - t;
    double s = desc->scale * qk;
    if (desc->softcap > 0)
        s = desc->softcap * tanh(s / desc->softcap);
    if (a->slope)
        s -= (double)a->slope[j] * (double)llabs(relative);
    if (desc->rel_bias.p)
        s += a->table64[bias_at(a, t, j, k)];
    return s;
}

/* Compute the output o [d_v] of query t of sequence i and head j, and return its log-sum-exp. */
static double row64(const struct attn *a, int64_t t, int64_t i, int64_t j, double *o)
{
    const struct meg_attn_desc *desc = &a->desc;
    const double *q = a->q64 + (t * desc->b + i) * a->ldq + j * desc->d;
    const double *kv = a->kv64 + i * a->ldk + j / a->r * a->vk;
    double sum = desc->sink.p ? exp(a->sink64[j]) : 0.0;
    memset(o, 0, (size_t)desc->d_v * sizeof *o);
    for (int64_t k = 0; k < desc->s_k; k++) {
        const double *key = kv + k * desc->b * a->ldk;
        double s = 0.0, p;
        if (!sees(a, t, i, k))
            continue;
        for (int64_t c = 0; c < desc->d; c++)
            s += q[c] * key[c];
        p = exp(score64(a, s, t, j, k));
        sum += p;
        p *= keep64(a, t, i, j, k);
        for (int64_t c = 0; c < desc->d_v; c++)
            o[c] += p * key[desc->d + c];
    }
    for (int64_t c = 0; sum > 0 && c < desc->d_v; c++)
        o[c] /= sum;
    return log(sum);
}

static double loss(void *arg)
{
    const struct attn *a = arg;
    double o[256], s = 0.0;
    for (int64_t t = 0; t < a->desc.s_q; t++)
        for (int64_t i = 0; i < a->desc.b; i++)
            for (int64_t j = 0; j < a->desc.a; j++) {
                row64(a, t, i, j, o);
                for (int64_t c = 0; c < a->desc.d_v; c++)
                    s += o[c] * a->d_o[(t * a->desc.b + i) * a->ldo + j * a->desc.d_v + c];
            }
    return s;
}

/*
 * Call attn_bwd with a workspace of NaN that has exactly the size that attn_bwd_nbytes returns.  Return the number of
 * bytes of the workspace up to the last one that was written.
 */
static size_t call_attn_bwd(const struct meg_ops *ops, struct meg_attn_bwd_args args)
{
    const bool has_param_grads = args.d_rel_bias.p || args.d_sink.p;
    const size_t nbytes = ops->attn_bwd_nbytes(args.desc, args.dq.dtype, has_param_grads), more = 4096;
    unsigned char *p = zeros((int64_t)(nbytes + more), 1);
    size_t used = nbytes + more;
    args.workspace = (struct meg_workspace){ p, nbytes };
    memset(p, 0xff, used);
    ops->attn_bwd(NULL, &args);
    while (used > 0 && p[used - 1] == 0xff)
        used--;
    free(p);
    assert_true(used <= nbytes);
    return used;
}

/* Compute the gradients dq and dkv of type t from o and lse; if delta is not NULL, from delta instead of o. */
static size_t backward(const struct meg_ops *ops, const struct attn *a, void *dq, void *dkv, enum meg_dtype t,
                       int accumulate, const float *delta)
{
    const struct meg_attn_bwd_args args = { .desc = &a->desc,
                                            .drop = &a->drop,
                                            .dq = queries_in(a, dq, t),
                                            .dk = keys_in(a, dkv, t, 0),
                                            .dv = keys_in(a, dkv, t, 1),
                                            .accumulate = accumulate,
                                            .d_rel_bias = { a->desc.rel_bias.p ? a->d_table : NULL, MEG_DTYPE_F32,
                                                            BUCKETS, a->desc.a, a->desc.a + 1 },
                                            .d_sink = { a->desc.sink.p ? a->d_sink : NULL, MEG_DTYPE_F32 },
                                            .d_o = outputs_in(a, a->d_ot, a->dtype),
                                            .o = outputs(a, delta ? NULL : a->o),
                                            .lse = a->lse,
                                            .delta = delta,
                                            .q = queries_in(a, a->qt, a->dtype),
                                            .k = keys_in(a, a->kvt, a->dtype, 0),
                                            .v = keys_in(a, a->kvt, a->dtype, 1) };
    return call_attn_bwd(ops, args);
}

static void run(const struct meg_ops *ops, struct attn *a, uint64_t *h)
{
    const int64_t nq = a->desc.s_q * a->desc.b, nk = a->desc.s_k * a->desc.b * a->ldk;
    const struct meg_heads q = queries_in(a, a->qt, a->dtype);
    const struct meg_heads k = keys_in(a, a->kvt, a->dtype, 0), v = keys_in(a, a->kvt, a->dtype, 1);
    MEG_CALL(ops, NULL, attn_fwd, .desc = &a->desc, .o = outputs(a, a->o), .lse = a->lse, .q = q, .k = k, .v = v,
             .drop = &a->drop);
    backward(ops, a, a->dq, a->dkv, MEG_DTYPE_F32, 0, NULL);
    digest(h, a->o, (size_t)(nq * a->ldo) * 4);
    digest(h, a->lse, (size_t)(a->desc.b * a->desc.a * a->desc.s_q) * 4);
    digest(h, a->dq, (size_t)(nq * a->ldq) * 4);
    digest(h, a->dkv, (size_t)nk * 4);
    digest(h, a->d_table, (size_t)(BUCKETS * (a->desc.a + 1)) * 4);
    digest(h, a->d_sink, (size_t)a->desc.a * 4);
}

/*
 * Return a bound of the errors of scores in f32, which also bounds the relative errors of softmax weights and of their
 * sums.  A score is a sum of d products and below sqrt(d).  The bias of ALiBi is up to s_k, and a capped score is up
 * to softcap.  Rounding errors are proportional to these magnitudes.
 */
static double score_tol(const struct attn *a)
{
    const struct meg_attn_desc *desc = &a->desc;
    const double range = (a->slope ? (double)desc->s_k : 0.0) + 4.0 * (double)desc->softcap;
    return (8.0 + sqrt((double)desc->s_k) + (double)desc->d + range) * EPS;
}

static void check_forward(const struct attn *a)
{
    const struct meg_attn_desc *desc = &a->desc;
    const double tol = score_tol(a);
    double want[256];
    for (int64_t t = 0; t < desc->s_q; t++)
        for (int64_t i = 0; i < desc->b; i++)
            for (int64_t j = 0; j < desc->a; j++) {
                const double lse = row64(a, t, i, j, want);
                const float got = a->lse[(i * desc->a + j) * desc->s_q + t];
                if (isinf(lse))
                    assert_true(got == lse);
                else
                    near(got, lse, tol * (1.0 + fabs(lse)), "lse", t, j);
                for (int64_t c = 0; c < desc->d_v; c++)
                    near(a->o[(t * desc->b + i) * a->ldo + j * desc->d_v + c], want[c], 2.0 * tol, "o", t, c);
            }
}

/*
 * A sum of products in f64, and the sum of their absolute values, `magnitude`, to which rounding errors of the sum in
 * f32 are proportional.
 */
struct sum64 {
    double value, magnitude;
};

static void add64(struct sum64 *y, double x, double magnitude)
{
    y->value += x;
    y->magnitude += magnitude;
}

/* Gradients of the sum of d_o * o; each has the shape of the corresponding array of struct attn. */
struct grads64 {
    struct sum64 *q, *kv, *table, *sink;
};

/* Return the derivative of score64 with respect to qk. */
static double score_slope64(const struct attn *a, double qk)
{
    const double scale = a->desc.scale, cap = a->desc.softcap, y = cap > 0 ? tanh(scale * qk / cap) : 0.0;
    return scale * (1.0 - y * y);
}

static struct sum64 dot64(const double *x, const double *y, int64_t n)
{
    struct sum64 sum = { 0 };
    for (int64_t c = 0; c < n; c++)
        add64(&sum, x[c] * y[c], fabs(x[c] * y[c]));
    return sum;
}

/* Add the contributions of query t of sequence i and head j to the gradients. */
static void add_row_grads64(const struct attn *a, struct grads64 *g, int64_t t, int64_t i, int64_t j)
{
    const struct meg_attn_desc *desc = &a->desc;
    const int64_t at_q = (t * desc->b + i) * a->ldq + j * desc->d, at_kv = i * a->ldk + j / a->r * a->vk;
    double o[256], d_o[256];
    const double lse = row64(a, t, i, j, o);
    struct sum64 delta;
    for (int64_t c = 0; c < desc->d_v; c++)
        d_o[c] = a->d_o[(t * desc->b + i) * a->ldo + j * desc->d_v + c];
    delta = dot64(d_o, o, desc->d_v);
    for (int64_t k = 0; k < desc->s_k; k++) {
        const int64_t at_k = at_kv + k * desc->b * a->ldk;
        const double *q = a->q64 + at_q, *key = a->kv64 + at_k, *value = key + desc->d;
        struct sum64 d_weight;
        double qk, p, keep, d_score, size, slope;
        if (!sees(a, t, i, k))
            continue;
        qk = dot64(q, key, desc->d).value;
        p = exp(score64(a, qk, t, j, k) - lse);
        keep = keep64(a, t, i, j, k);
        d_weight = dot64(d_o, value, desc->d_v);
        d_score = p * (keep * d_weight.value - delta.value);
        size = p * (keep * d_weight.magnitude + delta.magnitude);
        slope = score_slope64(a, qk);
        for (int64_t c = 0; c < desc->d_v; c++)
            add64(&g->kv[at_k + desc->d + c], p * keep * d_o[c], p * keep * fabs(d_o[c]));
        for (int64_t c = 0; c < desc->d; c++) {
            add64(&g->q[at_q + c], d_score * slope * key[c], size * slope * fabs(key[c]));
            add64(&g->kv[at_k + c], d_score * slope * q[c], size * slope * fabs(q[c]));
        }
        if (desc->rel_bias.p)
            add64(&g->table[bias_at(a, t, j, k)], d_score, size);
    }
    if (desc->sink.p)
        add64(&g->sink[j], -exp(a->sink64[j] - lse) * delta.value, exp(a->sink64[j] - lse) * delta.magnitude);
}

static struct grads64 grads64_new(const struct attn *a)
{
    const struct meg_attn_desc *desc = &a->desc;
    struct grads64 g = { zeros(desc->s_q * desc->b * a->ldq, sizeof *g.q),
                         zeros(desc->s_k * desc->b * a->ldk, sizeof *g.kv),
                         zeros(BUCKETS * (desc->a + 1), sizeof *g.table), zeros(desc->a, sizeof *g.sink) };
    for (int64_t t = 0; t < desc->s_q; t++)
        for (int64_t i = 0; i < desc->b; i++)
            for (int64_t j = 0; j < desc->a; j++)
                add_row_grads64(a, &g, t, i, j);
    return g;
}

static void grads64_free(struct grads64 *g)
{
    free(g->q);
    free(g->kv);
    free(g->table);
    free(g->sink);
}

/* Compare rows of cols gradients, which begin ld elements apart.  tol is relative to the magnitude of a gradient. */
static void near_rows(const float *got, const struct sum64 *want, int64_t rows, int64_t cols, int64_t ld, double tol,
                      const char *what)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++) {
            const struct sum64 x = want[r * ld + c];
            near(got[r * ld + c], x.value, tol * x.magnitude + FLT_MIN, what, r, c);
        }
}

static void check_backward(const struct attn *a)
{
    const struct meg_attn_desc *desc = &a->desc;
    const double tol = 2.0 * score_tol(a);
    struct grads64 g = grads64_new(a);
    near_rows(a->dq, g.q, desc->s_q * desc->b, desc->a * desc->d, a->ldq, tol, "dq");
    near_rows(a->dkv, g.kv, desc->s_k * desc->b, desc->g * a->vk, a->ldk, tol, "dk or dv");
    if (desc->rel_bias.p)
        near_rows(a->d_table, g.table, BUCKETS, desc->a, desc->a + 1, tol, "d_rel_bias");
    if (desc->sink.p)
        near_rows(a->d_sink, g.sink, 1, desc->a, desc->a, tol, "d_sink");
    grads64_free(&g);
}

/* Compare a gradient in f64 with central differences of the loss with respect to x [n]. */
static void check_differences(struct attn *a, double *x, const struct sum64 *grad, int64_t n, const char *what)
{
    const struct fd f = { loss, a, 1e-6, MEG_DTYPE_F32 };
    float *rounded = zeros(n, sizeof *rounded);
    for (int64_t i = 0; i < n; i++)
        rounded[i] = (float)grad[i].value;
    fd_check(&f, x, n, rounded, n, what);
    free(rounded);
}

/* Compare the reference gradients in f64 with finite differences of the reference outputs in f64. */
static void reference_gradients(const struct meg_ops *ops)
{
    struct meg_attn_desc desc = shape(7, 9, 2, 4, 2, 3, 2, 1, 0.6f);
    struct attn a;
    struct grads64 g;
    (void)ops;
    desc.d_v = 2;
    desc.window_left = 5;
    desc.softcap = 1.5f;
    a = attn_new(desc, DOCS | LENGTHS | ALIBI | REL_BIAS | SINK, 0.2f);
    g = grads64_new(&a);
    check_differences(&a, a.q64, g.q, desc.s_q * desc.b * a.ldq, "q");
    check_differences(&a, a.kv64, g.kv, desc.s_k * desc.b * a.ldk, "k or v");
    check_differences(&a, a.table64, g.table, BUCKETS * (desc.a + 1), "table");
    check_differences(&a, a.sink64, g.sink, desc.a, "sink");
    grads64_free(&g);
    attn_free(&a);
}

static void all_of(const struct meg_ops *ops, struct meg_attn_desc desc, int arrays, float p_drop)
{
    struct attn a = attn_new(desc, arrays, p_drop);
    uint64_t h[2] = { 0, 0 };
    for (int k = 0; k < 2; k++) {
        omp_set_num_threads(k ? 2 : 1);
        run(ops, &a, h + k);
    }
    assert_int_equal(h[0], h[1]);
    check_forward(&a);
    check_backward(&a);
    attn_free(&a);
}

static void small(const struct meg_ops *ops)
{
    for (int causal = 0; causal < 2; causal++)
        for (int docs = 0; docs <= causal; docs++)
            for (int drop = 0; drop < 2; drop++) {
                all_of(ops, shape(1, 1, 1, 1, 1, 1, 0, causal, 1.0f), docs, 0.0f);
                all_of(ops, shape(13, 13, 2, 4, 4, 7, 0, causal, 0.4f), docs, (float)drop * 0.1f);
                all_of(ops, shape(45, 45, 3, 6, 2, 16, 0, causal, 0.25f), docs, (float)drop * 0.3f);
            }
}

static void many_tiles(const struct meg_ops *ops)
{
    all_of(ops, shape(530, 530, 1, 2, 1, 8, 0, 1, 0.3f), 0, 0.2f);
    all_of(ops, shape(530, 530, 2, 1, 1, 8, 0, 1, 0.3f), 1, 0.2f);
    all_of(ops, shape(140, 600, 1, 1, 1, 12, 0, 0, 0.3f), 0, 0.0f);
}

/* Test few queries with many keys, as in decoding with a KV cache; queries are mostly at the end of the sequence. */
static void decoding(const struct meg_ops *ops)
{
    all_of(ops, shape(1, 301, 2, 4, 2, 64, 300, 1, 0.125f), 0, 0.0f);
    all_of(ops, shape(1, 9, 3, 6, 6, 80, 8, 1, 0.125f), 0, 0.0f);
    all_of(ops, shape(5, 301, 1, 2, 2, 33, 296, 1, 0.125f), 1, 0.0f);
    all_of(ops, shape(1, 1000, 1, 2, 1, 16, 700, 1, 0.125f), 0, 0.0f);
}

/*
 * Compute the attention of queries [t0, t1) for one chunk of the keys at a time: merge the outputs, sum the gradients.
 * All keys of the first chunks may be masked.
 */
static void run_rows_in_chunks(const struct meg_ops *ops, struct attn *a, int64_t t0, int64_t t1, const int64_t *bound,
                               int nchunks)
{
    struct meg_attn_desc desc = a->desc;
    const int64_t n = t1 - t0, rows = desc.b * desc.a;
    float *o_part = rnd_new(desc.s_q * desc.b * a->ldo), *stats = rnd_new(3 * rows * n);
    float *lse = stats, *lse_part = stats + rows * n, *delta = stats + 2 * rows * n;
    const struct meg_heads q = heads_from(queries_in(a, a->qt, a->dtype), t0), o = heads_from(outputs(a, a->o), t0);
    const struct meg_heads d_o = heads_from(outputs_in(a, a->d_ot, a->dtype), t0);

    const struct meg_mat d_rel_bias = { desc.rel_bias.p ? a->d_table : NULL, MEG_DTYPE_F32, BUCKETS, desc.a,
                                        desc.a + 1 };

    desc.s_q = n;
    desc.q0 += t0;
    desc.doc_start = a->doc ? a->doc + t0 * desc.b : NULL;
    for (int bwd = 0; bwd < 2; bwd++) {
        for (int p = nchunks - 2; p >= 0; p--) {
            const struct meg_heads k = heads_from(keys_in(a, a->kvt, a->dtype, 0), bound[p]);
            const struct meg_heads v = heads_from(keys_in(a, a->kvt, a->dtype, 1), bound[p]);
            desc.k0 = bound[p];
            desc.s_k = bound[p + 1] - bound[p];
            desc.sink = p == nchunks - 2 ? a->desc.sink : (struct meg_array){ NULL, MEG_DTYPE_F32 };
            if (bwd) {
                const struct meg_attn_bwd_args args = { .desc = &desc,
                                                        .drop = &a->drop,
                                                        .dq = heads_from(queries(a, a->dq), t0),
                                                        .dk = heads_from(keys(a, a->dkv, 0), bound[p]),
                                                        .dv = heads_from(keys(a, a->dkv, 1), bound[p]),
                                                        .accumulate = 1,
                                                        .d_rel_bias = d_rel_bias,
                                                        .d_sink = { desc.sink.p ? a->d_sink : NULL, MEG_DTYPE_F32 },
                                                        .accumulate_params = 1,
                                                        .d_o = d_o,
                                                        .lse = lse,
                                                        .delta = delta,
                                                        .q = q,
                                                        .k = k,
                                                        .v = v };
                call_attn_bwd(ops, args);
            } else if (p == nchunks - 2) {
                MEG_CALL(ops, NULL, attn_fwd, .desc = &desc, .o = o, .lse = lse, .q = q, .k = k, .v = v,
                         .drop = &a->drop);
            } else {
                MEG_CALL(ops, NULL, attn_fwd, .desc = &desc, .o = outputs(a, o_part), .lse = lse_part, .q = q, .k = k,
                         .v = v, .drop = &a->drop);
                MEG_CALL(ops, NULL, attn_merge, .desc = &desc, .o = o, .lse = lse, .o_part = outputs(a, o_part),
                         .lse_part = lse_part);
            }
        }
        MEG_CALL(ops, NULL, attn_delta, .desc = &desc, .delta = delta, .d_o = d_o, .o = o);
    }
    for (int64_t r = 0; r < rows; r++)
        memcpy(a->lse + r * a->desc.s_q + t0, lse + r * n, (size_t)n * sizeof *lse);
    free(o_part);
    free(stats);
}

static void in_chunks(const struct meg_ops *ops, struct meg_attn_desc desc, int arrays, float p_drop,
                      const int64_t *bound, int nchunks)
{
    struct attn a = attn_new(desc, arrays, p_drop);
    memset(a.dq, 0, (size_t)(desc.s_q * desc.b * a.ldq) * sizeof *a.dq);
    memset(a.dkv, 0, (size_t)(desc.s_k * desc.b * a.ldk) * sizeof *a.dkv);
    memset(a.d_table, 0, (size_t)(BUCKETS * (desc.a + 1)) * sizeof *a.d_table);
    memset(a.d_sink, 0, (size_t)desc.a * sizeof *a.d_sink);
    for (int p = 0; p < nchunks - 1; p++)
        run_rows_in_chunks(ops, &a, bound[p], bound[p + 1], bound, nchunks);
    check_forward(&a);
    check_backward(&a);
    attn_free(&a);
}

static void chunks_of_keys_merge(const struct meg_ops *ops)
{
    static const int64_t fours[] = { 0, 4, 8, 12, 16, 20, 24, 28, 32 }, odd[] = { 0, 3, 50, 51, 61 };
    static const int64_t long_ones[] = { 0, 300, 620 };
    for (int causal = 0; causal < 2; causal++)
        for (int docs = 0; docs <= causal; docs++) {
            in_chunks(ops, shape(32, 32, 2, 8, 4, 8, 0, causal, 0.35f), docs, 0.2f, fours, LEN(fours));
            in_chunks(ops, shape(61, 61, 3, 2, 2, 7, 0, causal, 0.4f), docs, 0.1f, odd, LEN(odd));
        }
    for (int causal = 0; causal < 2; causal++) {
        struct meg_attn_desc desc = shape(61, 61, 3, 4, 2, 7, 0, causal, 0.4f);
        desc.d_v = 5;
        desc.window_left = 23;
        desc.softcap = 1.5f;
        in_chunks(ops, desc, LENGTHS | ALIBI | REL_BIAS | SINK | DOCS * causal, 0.1f, odd, LEN(odd));
    }
    in_chunks(ops, shape(620, 620, 1, 2, 1, 16, 0, 1, 0.25f), 0, 0.1f, long_ones, LEN(long_ones));
}

/* Queries without a visible key have o = 0 and lse = -infinity, and merging these changes nothing. */
static void keys_that_no_query_sees(const struct meg_ops *ops)
{
    struct meg_attn_desc desc = shape(9, 12, 2, 4, 2, 8, 0, 1, 0.35f);
    struct attn a = attn_new(desc, 0, 0.1f);
    const int64_t nq = 9 * 2 * a.ldq, nlse = 2 * 4 * 9;
    float *o = rnd_new(nq), *lse = rnd_new(nlse), *o_before = copy_new(o, nq), *lse_before = copy_new(lse, nlse);
    uint64_t h = 0;
    a.desc.s = 24;
    a.desc.k0 = 9;
    run(ops, &a, &h);
    for (int64_t i = 0; i < nlse; i++)
        assert_true(a.lse[i] == -INFINITY);
    for (int64_t t = 0; t < 9 * 2; t++)
        for (int64_t c = 0; c < 4 * 8; c++)
            assert_true(a.o[t * a.ldq + c] == 0.0f && a.dq[t * a.ldq + c] == 0.0f);
    for (int64_t t = 0; t < 12 * 2; t++)
        for (int64_t c = 0; c < 2 * 2 * 8; c++)
            assert_true(a.dkv[t * a.ldk + c] == 0.0f);
    MEG_CALL(ops, NULL, attn_merge, .desc = &a.desc, .o = outputs(&a, o), .lse = lse, .o_part = outputs(&a, a.o),
             .lse_part = a.lse);
    assert_memory_equal(o, o_before, (size_t)nq * sizeof *o);
    assert_memory_equal(lse, lse_before, (size_t)nlse * sizeof *lse);
    MEG_CALL(ops, NULL, attn_merge, .desc = &a.desc, .o = outputs(&a, a.o), .lse = a.lse, .o_part = outputs(&a, o),
             .lse_part = lse); /* in the reverse order */
    for (int64_t t = 0; t < 9 * 2; t++)
        assert_memory_equal(a.o + t * a.ldq, o + t * a.ldq, 4 * 8 * sizeof *o);
    assert_memory_equal(a.lse, lse, (size_t)nlse * sizeof *lse);
    MEG_CALL(ops, NULL, attn_merge, .desc = &a.desc, .o = outputs(&a, o), .lse = lse, .o_part = outputs(&a, a.o),
             .lse_part = a.lse); /* with itself: lse + log(2) */
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
        struct attn a = attn_in(types[n], shape(300, 300, 2, 4, 2, 24, 0, 1, 0.25f), 1, 0.1f);
        const int64_t nq = 300 * 2 * a.ldq;
        void *o = zeros(nq, 2), *want;
        uint64_t h = 0;
        run(ops, &a, &h);
        check_forward(&a);
        check_backward(&a);
        MEG_CALL(ops, NULL, attn_fwd, .desc = &a.desc, .o = outputs_in(&a, o, types[n]), .lse = a.lse,
                 .q = queries_in(&a, a.qt, types[n]), .k = keys_in(&a, a.kvt, types[n], 0),
                 .v = keys_in(&a, a.kvt, types[n], 1), .drop = &a.drop);
        want = round_to(a.o, nq, types[n]);
        for (int64_t t = 0; t < 300 * 2; t++)
            assert_memory_equal((uint16_t *)o + t * a.ldq, (uint16_t *)want + t * a.ldq, 4 * 24 * 2);
        MEG_CALL(ops, NULL, attn_delta, .desc = &a.desc, .delta = a.delta, .d_o = outputs_in(&a, a.d_ot, types[n]),
                 .o = outputs_in(&a, o, types[n]));
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
            struct attn a = attn_in(t, shape(300, 300, 2, 6, 2, 24, 0, 1, 0.25f), DOCS | REL_BIAS | SINK, 0.1f);
            const int64_t nq = 300 * 2 * a.ldq, nk = 300 * 2 * a.ldk;
            void *dq = round_to(a.dq, nq, t), *dkv = round_to(a.dkv, nk, t), *dq_want, *dkv_want;
            float *dq32 = copy_new(a.dq, nq), *dkv32 = copy_new(a.dkv, nk);
            uint64_t h = 0;
            run(ops, &a, &h);
            check_backward(&a);
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

/*
 * If dq, dk and dv are bf16 or f16, each thread that has work sums the gradients of one group in f32 in the workspace.
 * With parameter gradients, the workspace also has f64 sums for each head of each sequence.  With one thread, all bytes
 * are used.
 */
static void workspace(const struct meg_ops *ops)
{
    enum { D = 24, D_V = 16, S_Q = 30, S_K = 50, SUMS = 4 * (S_Q * D + S_K * (D + D_V)), PARAMS = 8 * 2 * 4 };
    static const struct {
        int arrays;
        enum meg_dtype grad;
        size_t params;
        int has_sums;
    } c[] = {
        { 0, MEG_DTYPE_F32, 0, 0 },
        { 0, MEG_DTYPE_BF16, 0, 1 },
        { 0, MEG_DTYPE_F16, 0, 1 },
        { SINK, MEG_DTYPE_F32, PARAMS, 0 },
        { REL_BIAS | SINK, MEG_DTYPE_F32, PARAMS * (BUCKETS + 1), 0 },
        { REL_BIAS | SINK, MEG_DTYPE_BF16, PARAMS * (BUCKETS + 1), 1 },
    };
    struct meg_attn_desc desc = shape(S_Q, S_K, 2, 4, 2, D, 20, 1, 0.2f);
    desc.d_v = D_V;
    for (size_t n = 0; n < LEN(c); n++) {
        struct attn a = attn_new(desc, c[n].arrays, 0.0f);
        uint64_t h = 0;
        for (int threads = 1; threads <= 8; threads++) { /* two groups of two sequences: work for four threads */
            omp_set_num_threads(threads);
            assert_int_equal(ops->attn_bwd_nbytes(&a.desc, c[n].grad, c[n].params > 0),
                             c[n].params + (size_t)(c[n].has_sums * (threads < 4 ? threads : 4) * SUMS));
        }
        omp_set_num_threads(1);
        run(ops, &a, &h);
        assert_int_equal(backward(ops, &a, a.dq, a.dkv, c[n].grad, 0, NULL),
                         c[n].params + (size_t)(c[n].has_sums * SUMS));
        attn_free(&a);
    }
    omp_set_num_threads(2);
}

/* The gradients are the same whether attn_delta or attn_bwd computes delta. */
static void delta_given(const struct meg_ops *ops)
{
    struct attn a = attn_new(shape(300, 300, 2, 6, 2, 24, 0, 1, 0.25f), 1, 0.1f);
    const int64_t nq = 300 * 2 * a.ldq, nk = 300 * 2 * a.ldk;
    float *dq = copy_new(a.dq, nq), *dkv = copy_new(a.dkv, nk);
    uint64_t h = 0;
    run(ops, &a, &h);
    MEG_CALL(ops, NULL, attn_delta, .desc = &a.desc, .delta = a.delta, .d_o = outputs(&a, a.d_o),
             .o = outputs(&a, a.o));
    backward(ops, &a, dq, dkv, MEG_DTYPE_F32, 0, a.delta);
    assert_memory_equal(dq, a.dq, (size_t)nq * sizeof *dq);
    assert_memory_equal(dkv, a.dkv, (size_t)nk * sizeof *dkv);
    free(dq);
    free(dkv);
    attn_free(&a);
}

/* Test each field of the descriptor alone and combinations of fields, in short sequences and in those of many tiles. */
static void fields(const struct meg_ops *ops)
{
    static const struct {
        int64_t window_left, window_right, d_v;
        float softcap, p_drop;
        int arrays;
    } c[] = {
        { 5, 0, 12, 0.0f, 0.0f, 0 },
        { 3, 4, 12, 0.0f, 0.0f, 0 },
        { 0, -1, 12, 0.0f, 0.0f, 0 },
        { -1, -1, 12, 0.0f, 0.0f, LENGTHS },
        { -1, 0, 20, 0.0f, 0.0f, 0 },
        { -1, -1, 5, 0.0f, 0.0f, 0 },
        { -1, 0, 12, 0.7f, 0.0f, 0 },
        { -1, 0, 12, 0.0f, 0.0f, ALIBI },
        { -1, -1, 12, 0.0f, 0.0f, ALIBI },
        { -1, 0, 12, 0.0f, 0.0f, REL_BIAS },
        { -1, -1, 12, 0.0f, 0.0f, REL_BIAS },
        { -1, 0, 12, 0.0f, 0.0f, SINK },
        { 20, 0, 12, 0.0f, 0.0f, DOCS | SINK },
        { -1, -1, 12, 0.9f, 0.2f, REL_BIAS },
        { 30, 9, 7, 0.8f, 0.1f, LENGTHS | ALIBI | REL_BIAS | SINK },
        { 40, 0, 16, 0.8f, 0.1f, DOCS | ALIBI | REL_BIAS | SINK },
    };
    for (size_t n = 0; n < LEN(c); n++)
        for (int is_long = 0; is_long < 2; is_long++) {
            struct meg_attn_desc desc =
                is_long ? shape(300, 300, 2, 2, 1, 12, 0, 0, 0.3f) : shape(45, 45, 3, 6, 2, 12, 0, 0, 0.3f);
            desc.window_left = c[n].window_left;
            desc.window_right = c[n].window_right;
            desc.d_v = c[n].d_v;
            desc.softcap = c[n].softcap;
            all_of(ops, desc, c[n].arrays, c[n].p_drop);
        }
}

/* The buckets begin at the distances at which those of Hugging Face's T5 begin. */
static void buckets(const struct meg_ops *ops)
{
    /* first distances of buckets 8 to 15 (bidirectional) and 16 to 31 (causal) of 32, for a maximum distance of 128 */
    static const int64_t both[] = { 8, 12, 16, 23, 32, 46, 64, 91 };
    static const int64_t past[] = { 16, 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113 };
    enum { N = 200, B = 32 };
    for (int is_both = 0; is_both < 2; is_both++) {
        struct meg_attn_desc desc = shape(1, 1, 1, 1, 1, 1, 0, 0, 0.0f);
        const struct meg_drop none = { 0 };
        float table[B], q = 0.0f, o, lse;
        for (int n = 0; n < B; n++)
            table[n] = (float)n;
        desc.rel_bias = (struct meg_mat){ table, MEG_DTYPE_F32, B, 1, 1 };
        desc.rel_bias_max_distance = 128;
        desc.rel_bias_is_bidirectional = is_both;
        desc.s = N;
        for (int64_t relative = 1 - N; relative < N; relative++) {
            const struct meg_heads x = { &q, MEG_DTYPE_F32, 1, 1, 1, 1 }, out = { &o, MEG_DTYPE_F32, 1, 1, 1, 1 };
            const int64_t distance = is_both ? llabs(relative) : relative < 0 ? -relative : 0;
            const int64_t exact = is_both ? 8 : 16, *first = is_both ? both : past;
            int64_t want = distance < exact ? distance : exact - 1;
            for (int64_t n = 0; n < exact && distance >= exact; n++)
                want += distance >= first[n];
            desc.q0 = relative < 0 ? -relative : 0;
            desc.k0 = relative > 0 ? relative : 0;
            MEG_CALL(ops, NULL, attn_fwd, .desc = &desc, .o = out, .lse = &lse, .q = x, .k = x, .v = x, .drop = &none);
            near(lse, (double)(want + (is_both && relative > 0 ? 16 : 0)), 0.0, "bucket", relative, is_both);
        }
    }
}

/*
 * With KV caches in blocks, each sequence of a batch has the same outputs as the sequence alone with contiguous keys
 * and values.
 */
static void cache_in_blocks(const struct meg_ops *ops, int64_t block, int64_t per_seq)
{
    static const enum meg_dtype types[] = { MEG_DTYPE_F32, MEG_DTYPE_BF16, MEG_DTYPE_F16 };
    enum { SEQS = 3, S_Q = 2, D = 24, D_V = 8, A = 4, G = 2, ROW = G * (D + D_V), MAX_PER_SEQ = 20 };
    static const int32_t start[SEQS] = { 0, 37, 300 };
    for (size_t n = 0; n < LEN(types); n++) {
        const enum meg_dtype t = types[n];
        const size_t size = meg_dtype_size(t);
        struct meg_attn_desc desc = shape(S_Q, block * per_seq, SEQS, A, G, D, 0, 1, 0.2f);
        int64_t offset[SEQS * MAX_PER_SEQ];
        int32_t length[SEQS];
        struct attn a;
        char *pool = zeros((SEQS * per_seq + 1) * block * ROW, size);
        struct meg_heads k = { pool, t, ROW, 0, D + D_V, 0 }, v = k;
        float *o;

        desc.d_v = D_V;
        desc.window_left = 150;
        a = attn_in(t, desc, ALIBI | REL_BIAS | SINK, 0.0f);
        o = rnd_new(S_Q * SEQS * a.ldo);
        v.p = pool + D * size;
        for (int64_t i = 0; i < SEQS * per_seq; i++) /* a permutation: 7 is coprime to 60 and to 3 */
            offset[i] = (1 + i * 7 % (SEQS * per_seq)) * block * ROW;
        for (int64_t i = 0; i < SEQS; i++) {
            length[i] = start[i] + S_Q;
            for (int64_t s = 0; s < length[i]; s++)
                memcpy(pool + (size_t)(offset[i * per_seq + s / block] + s % block * ROW) * size,
                       (char *)a.kvt + (size_t)((s * SEQS + i) * a.ldk) * size, ROW * size);
        }
        a.desc.query_start = start;
        a.desc.key_length = length;
        a.desc.block_offset = offset;
        a.desc.block_size = block;
        a.desc.blocks_per_seq = per_seq;
        MEG_CALL(ops, NULL, attn_fwd, .desc = &a.desc, .o = outputs(&a, a.o), .lse = a.lse,
                 .q = queries_in(&a, a.qt, t), .k = k, .v = v, .drop = &a.drop);
        for (int64_t i = 0; i < SEQS; i++) {
            struct meg_heads one_o = outputs(&a, o), one_q = queries_in(&a, a.qt, t);
            struct meg_heads one_k = keys_in(&a, a.kvt, t, 0), one_v = keys_in(&a, a.kvt, t, 1);
            float lse[A * S_Q];
            desc = a.desc;
            desc.b = 1;
            desc.q0 = start[i];
            desc.s_k = length[i];
            desc.query_start = desc.key_length = NULL;
            desc.block_offset = NULL;
            one_o.p = o + i * a.ldo;
            one_q.p = (char *)one_q.p + (size_t)(i * a.ldq) * size;
            one_k.p = (char *)one_k.p + (size_t)(i * a.ldk) * size;
            one_v.p = (char *)one_v.p + (size_t)(i * a.ldk) * size;
            MEG_CALL(ops, NULL, attn_fwd, .desc = &desc, .o = one_o, .lse = lse, .q = one_q, .k = one_k, .v = one_v,
                     .drop = &a.drop);
            assert_memory_equal(lse, a.lse + i * A * S_Q, sizeof lse);
            for (int64_t s = 0; s < S_Q; s++)
                assert_memory_equal(o + (s * SEQS + i) * a.ldo, a.o + (s * SEQS + i) * a.ldo, A * D_V * sizeof *o);
        }
        free(pool);
        free(o);
        attn_free(&a);
    }
}

static void paged_cache(const struct meg_ops *ops)
{
    cache_in_blocks(ops, 16, 20);
}

static void separate_caches(const struct meg_ops *ops)
{
    cache_in_blocks(ops, 320, 1);
}

/* Half of the heads, computed alone with their global indices, have the same outputs as with all heads. */
static void shard_of_heads(const struct meg_ops *ops)
{
    struct attn a = attn_new(shape(50, 50, 2, 4, 2, 8, 0, 1, 0.35f), 0, 0.25f);
    struct attn b = a;
    uint64_t h = 0;
    float *o;
    run(ops, &a, &h);
    o = copy_new(a.o, 50 * 2 * a.ldq);
    b.desc.a = 2;
    b.desc.g = 1;
    b.drop.unit0 += 2;
    b.q += 2 * 8;
    b.kv += 2 * 8;
    b.o += 2 * 8;
    MEG_CALL(ops, NULL, attn_fwd, .desc = &b.desc, .o = outputs(&b, b.o), .lse = b.lse, .q = queries(&b, b.q),
             .k = keys(&b, b.kv, 0), .v = keys(&b, b.kv, 1), .drop = &b.drop);
    assert_memory_equal(o, a.o, (size_t)(50 * 2 * a.ldq) * 4);
    free(o);
    attn_free(&a);
}

static void nan_propagates(const struct meg_ops *ops)
{
    struct attn a = attn_new(shape(40, 40, 1, 1, 1, 8, 0, 1, 0.35f), 0, 0.0f);
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
                else if (isnan(bad[n]) || a.q[t * a.ldq + 3] * bad[n] > 0) /* else the score is -infinity: weight 0 */
                    assert_true(isnan(a.o[t * a.ldq + c]));
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
        { "the gradients in f64 are central differences of the outputs in f64", reference_gradients },
        { "small shapes agree with f64", small },
        { "shapes of many tiles agree with f64", many_tiles },
        { "decoding attends to the keys in a cache", decoding },
        { "chunks of keys merge to the output of all keys", chunks_of_keys_merge },
        { "queries that see no key give 0", keys_that_no_query_sees },
        { "bf16 and f16 outputs are rounded once", half_types },
        { "bf16 and f16 gradients are rounded once", half_gradients },
        { "delta may be given or computed from o", delta_given },
        { "windows, padding, softcap, biases and sinks agree with f64", fields },
        { "relative positions have the buckets of T5", buckets },
        { "a paged cache gives the outputs of contiguous keys", paged_cache },
        { "separate caches give the outputs of contiguous keys", separate_caches },
        { "a shard of the heads gives the same outputs as all heads", shard_of_heads },
        { "NaN propagates to outputs and gradients", nan_propagates },
        { "attn_bwd uses the workspace that attn_bwd_nbytes states", workspace },
    };
    return run_cases(cases, LEN(cases));
}
