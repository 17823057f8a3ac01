/* The optimizers' passes and the sums over flat buffers, against f64. */
#include "ops.h"

enum { N = 50021 };

static const struct meg_range ranges[] = {
    { 0, 1, 1.0f, 1.0f, 0 },
    { 8, 20000, 0.0f, 1.0f, 0 },
    { 20000, 20017, 1.0f, 0.5f, 1 },
    { 20032, 50000, 2.0f, 1.0f, 0 },
};

static const struct meg_range *range_of(int64_t k)
{
    for (size_t i = 0; i < LEN(ranges); i++)
        if (k >= ranges[i].begin && k < ranges[i].end)
            return ranges + i;
    return NULL;
}

struct state {
    float *w, *g, *m, *v;
};

static struct state state_new(void)
{
    struct state s = { rnd_new(N), rnd_new(N), rnd_new(N), rnd_new(N) };
    for (int64_t k = 0; k < N; k++)
        s.v[k] *= s.v[k];
    return s;
}

static struct state state_copy(const struct state *s)
{
    return (struct state){ copy_new(s->w, N), copy_new(s->g, N), copy_new(s->m, N),
                           copy_new(s->v, N) };
}

static void state_free(struct state *s)
{
    free(s->w);
    free(s->g);
    free(s->m);
    free(s->v);
}

static void adamw(const struct meg_ops *ops)
{
    const struct meg_adam adam = { 0.9f, 0.95f, 1e-8f };
    struct meg_step step = {
        { 1e-3f, 5e-3f }, 0.1f, 1.0f - 0.9f * 0.9f, 1.0f - 0.95f * 0.95f, 0.25f, 0, 0
    };
    const struct state a = state_new();
    uint64_t h[2] = { 0, 0 };
    for (int k = 0; k < 2; k++) {
        struct state s = state_copy(&a);
        omp_set_num_threads(k ? 2 : 1);
        ops->adamw(NULL, s.w, s.g, s.m, s.v, ranges, LEN(ranges), &adam, &step);
        digest(h + k, s.w, N * 4);
        digest(h + k, s.m, N * 4);
        digest(h + k, s.v, N * 4);
        for (int64_t i = 0; i < N; i++) {
            const struct meg_range *r = range_of(i);
            if (r) {
                const double b1 = adam.beta1, b2 = adam.beta2,
                             lr = (double)step.lr[r->lr_index] * r->lr_mult;
                const double g = (double)a.g[i] * step.grad_scale, m = b1 * a.m[i] + (1 - b1) * g;
                const double v = b2 * a.v[i] + (1 - b2) * g * g;
                const double u = m / step.adam_c1 / (sqrt(v / step.adam_c2) + adam.eps) +
                    (double)step.weight_decay * r->wd_mult * a.w[i];
                near(s.m[i], m, 4 * EPS, "m", i, 0);
                near(s.v[i], v, 4 * EPS, "v", i, 0);
                near(s.w[i], a.w[i] - lr * u, 2 * EPS + 16 * EPS * lr * fabs(u), "w", i, 0);
                assert_true(s.g[i] == 0.0f);
            } else {
                assert_true(s.w[i] == a.w[i] && s.m[i] == a.m[i] && s.v[i] == a.v[i] &&
                            s.g[i] == a.g[i]);
            }
        }
        state_free(&s);
    }
    assert_int_equal(h[0], h[1]);
    {
        struct state s = state_copy(&a);
        step.skip = 1;
        step.grad_scale = NAN;
        ops->adamw(NULL, s.w, s.g, s.m, s.v, ranges, LEN(ranges), &adam, &step);
        assert_memory_equal(s.w, a.w, N * 4);
        assert_memory_equal(s.m, a.m, N * 4);
        assert_memory_equal(s.v, a.v, N * 4);
        assert_true(s.g[100] == 0.0f && s.g[20020] == a.g[20020]);
        state_free(&s);
        s = state_copy(&a);
        step.skip = 0;
        step.grad_scale = 1.0f;
        s.g[9] = NAN;
        ops->adamw(NULL, s.w, s.g, s.m, s.v, ranges, LEN(ranges), &adam, &step);
        assert_true(isnan(s.w[9]) && isnan(s.m[9]) && isnan(s.v[9]) && isfinite(s.w[10]));
        state_free(&s);
    }
    state_free((struct state *)&a);
}

static void sgd(const struct meg_ops *ops)
{
    struct meg_step step = { { 1e-2f, 5e-2f }, 0.1f, 0.0f, 0.0f, 0.5f, 1, 0 };
    const struct state a = state_new();
    uint64_t h[2] = { 0, 0 };
    for (int k = 0; k < 2; k++)
        for (int first = 1; first >= 0; first--) {
            struct state s = state_copy(&a);
            step.is_first = first;
            if (first)
                s.m[3000] = NAN; /* holds nothing yet */
            omp_set_num_threads(k ? 2 : 1);
            ops->sgd(NULL, s.w, s.g, s.m, ranges, LEN(ranges), 0.9f, &step);
            digest(h + k, s.w, N * 4);
            digest(h + k, s.m, N * 4);
            for (int64_t i = 0; i < N; i++) {
                const struct meg_range *r = range_of(i);
                if (r) {
                    const double lr = (double)step.lr[r->lr_index] * r->lr_mult;
                    const double g = (double)a.g[i] * step.grad_scale +
                        (double)step.weight_decay * r->wd_mult * a.w[i];
                    const double b = first ? g : (double)0.9f * a.m[i] + g;
                    near(s.m[i], b, 6 * EPS, "buf", i, 0);
                    near(s.w[i], a.w[i] - lr * b, 2 * EPS, "w", i, 0);
                    assert_true(s.g[i] == 0.0f);
                } else {
                    assert_true(s.w[i] == a.w[i] && s.m[i] == a.m[i] && s.g[i] == a.g[i]);
                }
            }
            state_free(&s);
        }
    assert_int_equal(h[0], h[1]);
    {
        struct state s = state_copy(&a);
        step.skip = 1;
        ops->sgd(NULL, s.w, s.g, s.m, ranges, LEN(ranges), 0.9f, &step);
        assert_memory_equal(s.w, a.w, N * 4);
        assert_memory_equal(s.m, a.m, N * 4);
        assert_true(s.g[100] == 0.0f);
        state_free(&s);
    }
    state_free((struct state *)&a);
}

static void sums(const struct meg_ops *ops)
{
    static const int64_t lengths[] = { 0, 1, 7, 1023, 1024, 1025, N };
    float *x = rnd_new(N);
    x[3] = 0.0f;
    x[5] = -0.0f;
    x[N - 1] = 0.0f;
    for (size_t i = 0; i < LEN(lengths); i++) {
        double want = 0.0, got[2];
        int64_t zeros_in = 0, found[2];
        for (int64_t k = 0; k < lengths[i]; k++) {
            want += (double)x[k] * x[k];
            zeros_in += x[k] == 0.0f;
        }
        for (int k = 0; k < 2; k++) {
            omp_set_num_threads(k ? 2 : 1);
            ops->sumsq(NULL, got + k, x, lengths[i]);
            ops->count_zeros(NULL, found + k, x, lengths[i]);
            near(got[k], want, 1e-13 * want, "sumsq", lengths[i], 0);
            assert_int_equal(found[k], zeros_in);
        }
        assert_memory_equal(got, got + 1, sizeof *got);
    }
    for (int64_t k = 0; k < N; k += 4999) {
        const float keep = x[k];
        double got;
        x[k] = NAN;
        ops->sumsq(NULL, &got, x, N);
        assert_true(isnan(got));
        x[k] = INFINITY;
        ops->sumsq(NULL, &got, x, N);
        assert_true(isinf(got));
        x[k] = keep;
    }
    free(x);
}

/* Squares that overflow f32 are finite: a norm of 1e38 is large, not broken. */
static void sum_of_large_squares_is_finite(const struct meg_ops *ops)
{
    float x[100];
    double got;
    for (int k = 0; k < 100; k++)
        x[k] = 3e38f;
    ops->sumsq(NULL, &got, x, 100);
    near(got, 100.0 * 3e38f * (double)3e38f, 1e-13 * got, "sumsq", 0, 0);
}

static void memory(const struct meg_ops *ops)
{
    static const size_t sizes[] = { 1, 64, 100, 3u << 20, (9u << 20) + 5 };
    assert_null(ops->supports(MEG_DTYPE_F32));
    assert_non_null(ops->supports(MEG_DTYPE_BF16));
    assert_non_null(ops->supports(MEG_DTYPE_F16));
    assert_null(ops->alloc(SIZE_MAX - 5));
    for (size_t i = 0; i < LEN(sizes); i++) {
        char *p = ops->alloc(sizes[i]), *q = malloc(sizes[i]);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % 64, 0);
        for (size_t k = 0; k < sizes[i]; k++)
            assert_true(p[k] == 0);
        memset(q, 7, sizes[i]);
        ops->upload(NULL, p, q, sizes[i]);
        memset(q, 0, sizes[i]);
        ops->download(NULL, q, p, sizes[i]);
        assert_true(q[0] == 7 && q[sizes[i] - 1] == 7);
        ops->zero(NULL, p, sizes[i]);
        assert_true(p[0] == 0 && p[sizes[i] - 1] == 0);
        ops->release(p);
        free(q);
    }
    ops->release(NULL);
}

static void copy_heads(const struct meg_ops *ops)
{
    enum { S = 3, B = 2, G = 2, D = 5 };
    float src[S * B * 40], dst[100 * B * G * D] = { 0 };
    const struct meg_heads from = { src + 7, MEG_DTYPE_F32, B * 40, 40, 15, 0 };
    const struct meg_heads to = { dst, MEG_DTYPE_F32, D, 100 * G * D, 100 * D, 0 };
    for (size_t k = 0; k < LEN(src); k++)
        src[k] = (float)rnd();
    ops->copy_heads(NULL, to, from, S, B, G, D);
    for (int t = 0; t < S; t++)
        for (int i = 0; i < B; i++)
            for (int j = 0; j < G; j++)
                assert_memory_equal(dst + i * 100 * G * D + j * 100 * D + t * D,
                                    src + 7 + (t * B + i) * 40 + j * 15, D * 4);
    assert_true(dst[S * D] == 0.0f);
}

int main(void)
{
    static const struct ops_case cases[] = {
        { "AdamW", adamw },
        { "SGD", sgd },
        { "sums over buffers", sums },
        { "large squares", sum_of_large_squares_is_finite },
        { "memory", memory },
        { "copying heads", copy_heads },
    };
    return run_cases(cases, LEN(cases));
}
