/* Attention against f64: plain, causal, packed documents, groups, dropout, decoding; gradients by differences. */
#include "ops.h"

/* A problem of its own: queries, keys and values packed in rows as a model packs them, by group. */
struct attn {
    struct meg_attn_geom ge;
    struct meg_drop drop;
    int64_t *sample;
    int32_t *doc;
    int64_t r, ldq, ldk;     /* heads a group; floats in a row of q, o and of k, v */
    float *q, *kv, *o, *lse; /* rows of kv hold, for each group, a key and a value head */
    float *d_o, *dq, *dkv, *delta;
    double *q64, *kv64;
};

static struct meg_heads queries(const struct attn *a, float *p)
{
    const int64_t d = a->ge.d;
    return (struct meg_heads){ p, MEG_DTYPE_F32, a->ge.b * a->ldq, a->ldq, a->r * d, d };
}

static struct meg_heads keys(const struct attn *a, float *p, int64_t value)
{
    const int64_t d = a->ge.d;
    return (struct meg_heads){ p + value * d, MEG_DTYPE_F32, a->ge.b * a->ldk, a->ldk, 2 * d, 0 };
}

static struct attn attn_new(struct meg_attn_geom ge, int has_docs, float p_drop)
{
    struct attn a = { .ge = ge, .r = ge.a / ge.g };
    const int64_t nq = ge.s_q * ge.b, nk = ge.s_k * ge.b;
    a.ldq = ge.a * ge.d + 5;
    a.ldk = ge.g * 2 * ge.d + 3;
    a.q = rnd_new(nq * a.ldq);
    a.d_o = rnd_new(nq * a.ldq);
    a.kv = rnd_new(nk * a.ldk);
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
        for (int64_t t = 0; t < ge.s_q; t++)
            for (int64_t i = 0; i < ge.b; i++)
                a.doc[t * ge.b + i] =
                    (int32_t)((ge.q0 + t + i) / 37 * 37 - i > 0 ? (ge.q0 + t + i) / 37 * 37 - i
                                                                : 0);
        a.ge.doc_start = a.doc;
    }
    a.drop = (struct meg_drop){ p_drop, 1234, 3, MEG_DROP_ATTN, 6, ge.q0, ge.b, a.sample };
    a.q64 = widen(a.q, nq * a.ldq);
    a.kv64 = widen(a.kv, nk * a.ldk);
    return a;
}

static void attn_free(struct attn *a)
{
    void *const all[] = { a->q,   a->kv,    a->o,   a->lse,  a->d_o,    a->dq,
                          a->dkv, a->delta, a->q64, a->kv64, a->sample, a->doc };
    for (size_t i = 0; i < LEN(all); i++)
        free(all[i]);
}

/* Whether dropout keeps a key, straight from the definition. */
static double keep64(const struct attn *a, int64_t t, int64_t i, int64_t j, int64_t k)
{
    return drop_factor64(&a->drop, (a->drop.unit0 + j) * ((a->ge.s_k + 7) / 8 * 8) + k,
                         a->drop.pos0 + t, a->sample[i]);
}

static int sees(const struct attn *a, int64_t t, int64_t i, int64_t k)
{
    return (!a->ge.is_causal || k <= a->ge.q0 + t) && (!a->doc || k >= a->doc[t * a->ge.b + i]);
}

/* One output row o [d] of head j, and its log-sum-exp. */
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

static void run(const struct meg_ops *ops, struct attn *a, uint64_t *h)
{
    const int64_t nq = a->ge.s_q * a->ge.b * a->ldq, nk = a->ge.s_k * a->ge.b * a->ldk;
    ops->attn_fwd(NULL, &a->ge, queries(a, a->o), a->lse, queries(a, a->q), keys(a, a->kv, 0),
                  keys(a, a->kv, 1), &a->drop);
    ops->attn_bwd(NULL, &a->ge, queries(a, a->dq), keys(a, a->dkv, 0), keys(a, a->dkv, 1), a->delta,
                  queries(a, a->d_o), queries(a, a->o), a->lse, queries(a, a->q), keys(a, a->kv, 0),
                  keys(a, a->kv, 1), &a->drop);
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
                /* scores are below sqrt(d) and right to d half ulps of that; so are the weights of the mean */
                const double tol = (8.0 + root + (double)a->ge.d) * EPS;
                const double lse = row64(a, t, i, j, want);
                near(a->lse[(i * a->ge.a + j) * a->ge.s_q + t], lse, tol * (1.0 + fabs(lse)), "lse",
                     t, j);
                for (int64_t c = 0; c < a->ge.d; c++)
                    near(a->o[(t * a->ge.b + i) * a->ldq + j * a->ge.d + c], want[c], 2.0 * tol,
                         "o", t, c);
            }
}

/* Padding of rows is in no sum: gradients of it are nothing, and not looked at. */
static void check_backward(struct attn *a, int64_t samples)
{
    const int64_t d = a->ge.d;
    struct fd f = { loss, a, (64.0 + (double)(d + a->ge.s_q * a->r)) * EPS + 1e-8 };
    for (int64_t n = 0; n < samples; n++) {
        const int64_t q = a->ge.s_q * a->ge.b, k = a->ge.s_k * a->ge.b;
        const int64_t at_q = (int64_t)((rnd() + 1) / 2 * (double)q) * a->ldq +
            (int64_t)((rnd() + 1) / 2 * (double)(a->ge.a * d));
        const int64_t at_k = (int64_t)((rnd() + 1) / 2 * (double)k) * a->ldk +
            (int64_t)((rnd() + 1) / 2 * (double)(a->ge.g * 2 * d));
        fd_check(&f, a->q64 + at_q, 1, a->dq + at_q, 1, "dq");
        fd_check(&f, a->kv64 + at_k, 1, a->dkv + at_k, 1, "dk or dv");
    }
}

static void all_of(const struct meg_ops *ops, struct meg_attn_geom ge, int has_docs, float p_drop,
                   int64_t samples)
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
                all_of(ops, (struct meg_attn_geom){ 1, 1, 1, 1, 1, 1, 0, causal, 1.0f, NULL }, docs,
                       0.0f, 1);
                all_of(ops, (struct meg_attn_geom){ 13, 13, 2, 4, 4, 7, 0, causal, 0.4f, NULL },
                       docs, (float)drop * 0.1f, 60);
                all_of(ops, (struct meg_attn_geom){ 45, 45, 3, 6, 2, 16, 0, causal, 0.25f, NULL },
                       docs, (float)drop * 0.3f, 30);
            }
}

static void many_tiles(const struct meg_ops *ops)
{
    all_of(ops, (struct meg_attn_geom){ 530, 530, 1, 2, 1, 8, 0, 1, 0.3f, NULL }, 0, 0.2f, 6);
    all_of(ops, (struct meg_attn_geom){ 530, 530, 2, 1, 1, 8, 0, 1, 0.3f, NULL }, 1, 0.2f, 40);
    all_of(ops, (struct meg_attn_geom){ 140, 600, 1, 1, 1, 12, 0, 0, 0.3f, NULL }, 0, 0.0f, 6);
}

/* Queries that come after keys already there: a cache. */
static void decoding(const struct meg_ops *ops)
{
    all_of(ops, (struct meg_attn_geom){ 1, 301, 2, 4, 2, 64, 300, 1, 0.125f, NULL }, 0, 0.0f, 10);
    all_of(ops, (struct meg_attn_geom){ 1, 9, 3, 6, 6, 80, 8, 1, 0.125f, NULL }, 0, 0.0f, 10);
    all_of(ops, (struct meg_attn_geom){ 5, 301, 1, 2, 2, 33, 296, 1, 0.125f, NULL }, 1, 0.0f, 10);
    all_of(ops, (struct meg_attn_geom){ 1, 1000, 1, 2, 1, 16, 700, 1, 0.125f, NULL }, 0, 0.0f, 10);
}

/* Half the heads alone, told where they stand, give what they give among all. */
static void a_shard_gives_its_part(const struct meg_ops *ops)
{
    struct attn a =
        attn_new((struct meg_attn_geom){ 50, 50, 2, 4, 2, 8, 0, 1, 0.35f, NULL }, 0, 0.25f);
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
    ops->attn_fwd(NULL, &b.ge, queries(&b, b.o), b.lse, queries(&b, b.q), keys(&b, b.kv, 0),
                  keys(&b, b.kv, 1), &b.drop);
    assert_memory_equal(o, a.o, (size_t)(50 * 2 * a.ldq) * 4);
    free(o);
    attn_free(&a);
}

static void nan_comes_through(const struct meg_ops *ops)
{
    struct attn a =
        attn_new((struct meg_attn_geom){ 40, 40, 1, 1, 1, 8, 0, 1, 0.35f, NULL }, 0, 0.0f);
    const float bad[] = { NAN, INFINITY, -INFINITY };
    for (size_t n = 0; n < LEN(bad); n++) {
        uint64_t h = 0;
        a.kv[20 * a.ldk + 3] = bad[n]; /* a key: queries 20.. see it */
        run(ops, &a, &h);
        for (int64_t t = 0; t < 40; t++)
            for (int64_t c = 0; c < 8; c++)
                if (t < 20)
                    assert_true(isfinite(a.o[t * a.ldq + c]));
                else if (isnan(bad[n]) || a.q[t * a.ldq + 3] * bad[n] > 0)
                    assert_true(isnan(
                        a.o[t * a.ldq + c])); /* a score of minus infinity is merely no weight */
    }
    a.kv[20 * a.ldk + 3] = 0.5f;
    a.kv[20 * a.ldk + 8 + 3] = NAN; /* a value: one column */
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
        { "small shapes", small },
        { "many tiles", many_tiles },
        { "queries behind a cache", decoding },
        { "a shard of the heads gives its part", a_shard_gives_its_part },
        { "NaN comes through", nan_comes_through },
    };
    return run_cases(cases, LEN(cases));
}
