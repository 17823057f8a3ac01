/* ops_optim.c - steps of the optimizers against f64; memory. */
#include "ops.h"
#include "base/philox.h"
#include "tensor/half.h"

enum { N = 50021 };

static const struct meg_update_range ranges[] = {
    { 0, 1, 1.0f, 1.0f, 0, 4, 0, 0, 1, 1 },
    { 8, 20000, 0.0f, 1.0f, 0, 3, 0, 0, N, N },
    { 20000, 20017, 1.0f, 0.5f, 1, 2, 0, 0, N, N },
    { 20032, 50000, 2.0f, 1.0f, 0, 1, 0, 0, N, N },
};

static const struct meg_update_range *range_of(int64_t k)
{
    for (size_t i = 0; i < LEN(ranges); i++)
        if (k >= ranges[i].begin && k < ranges[i].end)
            return ranges + i;
    return NULL;
}

struct state {
    float *w, *g, *m, *v;
};

static struct meg_update_arrays arrays(const struct state *s)
{
    return (struct meg_update_arrays){ .w = { s->w, MEG_DTYPE_F32 },
                                       .g = { s->g, MEG_DTYPE_F32 },
                                       .state = { { s->m, MEG_DTYPE_F32 }, { s->v, MEG_DTYPE_F32 } } };
}

static struct state state_new(void)
{
    struct state s = { rnd_new(N), rnd_new(N), rnd_new(N), rnd_new(N) };
    for (int64_t k = 0; k < N; k++)
        s.v[k] *= s.v[k];
    return s;
}

static struct state state_copy(const struct state *s)
{
    return (struct state){ copy_new(s->w, N), copy_new(s->g, N), copy_new(s->m, N), copy_new(s->v, N) };
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
    struct meg_step_hparams step = { { 1e-3f, 5e-3f }, 0.1f, 1.0f - 0.9f * 0.9f, 1.0f - 0.95f * 0.95f, 0.25f, 0, 2 };
    const struct state a = state_new();
    struct meg_update_arrays x;
    uint64_t h[2] = { 0, 0 };
    for (int k = 0; k < 2; k++) {
        struct state s = state_copy(&a);
        omp_set_num_threads(k ? 2 : 1);
        x = arrays(&s);
        MEG_CALL(ops, NULL, adamw, .arrays = &x, .range = ranges, .nranges = LEN(ranges), .adam = &adam, .step = &step);
        digest(h + k, s.w, N * 4);
        digest(h + k, s.m, N * 4);
        digest(h + k, s.v, N * 4);
        assert_memory_equal(s.g, a.g, N * 4);
        for (int64_t i = 0; i < N; i++) {
            const struct meg_update_range *r = range_of(i);
            if (r) {
                const double b1 = adam.beta1, b2 = adam.beta2, lr = (double)step.lr[r->lr_index] * r->lr_mult;
                const double g = (double)a.g[i] * step.grad_scale, m = b1 * a.m[i] + (1 - b1) * g;
                const double v = b2 * a.v[i] + (1 - b2) * g * g;
                const double u = m / step.adam_c1 / (sqrt(v / step.adam_c2) + adam.eps) +
                                 (double)step.weight_decay * r->wd_mult * a.w[i];
                near(s.m[i], m, 4 * EPS, "m", i, 0);
                near(s.v[i], v, 4 * EPS, "v", i, 0);
                near(s.w[i], a.w[i] - lr * u, 2 * EPS + 16 * EPS * lr * fabs(u), "w", i, 0);
            } else {
                assert_true(s.w[i] == a.w[i] && s.m[i] == a.m[i] && s.v[i] == a.v[i]);
            }
        }
        state_free(&s);
    }
    assert_int_equal(h[0], h[1]);
    {
        struct state s = state_copy(&a);
        step.skip = 1;
        step.grad_scale = NAN;
        x = arrays(&s);
        MEG_CALL(ops, NULL, adamw, .arrays = &x, .range = ranges, .nranges = LEN(ranges), .adam = &adam, .step = &step);
        assert_memory_equal(s.w, a.w, N * 4);
        assert_memory_equal(s.m, a.m, N * 4);
        assert_memory_equal(s.v, a.v, N * 4);
        state_free(&s);
        s = state_copy(&a);
        step.skip = 0;
        step.grad_scale = 1.0f;
        s.g[9] = NAN;
        x = arrays(&s);
        MEG_CALL(ops, NULL, adamw, .arrays = &x, .range = ranges, .nranges = LEN(ranges), .adam = &adam, .step = &step);
        assert_true(isnan(s.w[9]) && isnan(s.m[9]) && isnan(s.v[9]) && isfinite(s.w[10]));
        state_free(&s);
    }
    state_free((struct state *)&a);
}

static void sgd(const struct meg_ops *ops)
{
    struct meg_step_hparams step = { { 1e-2f, 5e-2f }, 0.1f, 0.0f, 0.0f, 0.5f, 0, 1 };
    const struct state a = state_new();
    struct meg_update_arrays x;
    uint64_t h[2] = { 0, 0 };
    for (int k = 0; k < 2; k++)
        for (int first = 1; first >= 0; first--) {
            struct state s = state_copy(&a);
            step.update = first ? 1 : 2;
            if (first)
                s.m[3000] = NAN; /* the first step must not read the momentum */
            omp_set_num_threads(k ? 2 : 1);
            x = arrays(&s);
            MEG_CALL(ops, NULL, sgd, .arrays = &x, .range = ranges, .nranges = LEN(ranges), .momentum = 0.9f,
                     .step = &step);
            digest(h + k, s.w, N * 4);
            digest(h + k, s.m, N * 4);
            assert_memory_equal(s.g, a.g, N * 4);
            for (int64_t i = 0; i < N; i++) {
                const struct meg_update_range *r = range_of(i);
                if (r) {
                    const double lr = (double)step.lr[r->lr_index] * r->lr_mult;
                    const double g = (double)a.g[i] * step.grad_scale + (double)step.weight_decay * r->wd_mult * a.w[i];
                    const double b = first ? g : (double)0.9f * a.m[i] + g;
                    near(s.m[i], b, 6 * EPS, "buf", i, 0);
                    near(s.w[i], a.w[i] - lr * b, 2 * EPS, "w", i, 0);
                } else {
                    assert_true(s.w[i] == a.w[i] && s.m[i] == a.m[i]);
                }
            }
            state_free(&s);
        }
    assert_int_equal(h[0], h[1]);
    {
        struct state s = state_copy(&a);
        step.skip = 1;
        x = arrays(&s);
        MEG_CALL(ops, NULL, sgd, .arrays = &x, .range = ranges, .nranges = LEN(ranges), .momentum = 0.9f,
                 .step = &step);
        assert_memory_equal(s.w, a.w, N * 4);
        assert_memory_equal(s.m, a.m, N * 4);
        state_free(&s);
    }
    state_free((struct state *)&a);
}

enum { ROWS = 37, COLS = 53, M = ROWS * COLS };

/* A state of M elements whose w, m and v are bf16; g is f32. */
struct state_bf16 {
    uint16_t w[M], m[M], v[M];
    float g[M];
};

static void fill(struct state_bf16 *s)
{
    float *x = rnd_new(M);

    for (int i = 0; i < M; i++) {
        s->w[i] = meg_to_bf16(x[i]);
        s->m[i] = meg_to_bf16(0.1f * x[M - 1 - i]);
        s->v[i] = meg_to_bf16(0.01f * x[i] * x[i]);
        s->g[i] = x[(7 * i + 3) % M];
    }
    free(x);
}

static void update_bf16(const struct meg_ops *ops, struct state_bf16 *s, struct meg_update_range range, int64_t update)
{
    const struct meg_adam adam = { 0.9f, 0.999f, 1e-8f };
    const struct meg_step_hparams step = { { 1e-3f, 0 }, 0.1f, 0.5f, 0.4f, 1.0f, 0, update };
    const struct meg_update_arrays x = { .w = { s->w, MEG_DTYPE_BF16 },
                                         .g = { s->g, MEG_DTYPE_F32 },
                                         .state = { { s->m, MEG_DTYPE_BF16 }, { s->v, MEG_DTYPE_BF16 } },
                                         .seed = 42 };

    MEG_CALL(ops, NULL, adamw, .arrays = &x, .range = &range, .nranges = 1, .adam = &adam, .step = &step);
}

static const struct meg_update_range all_of_m = { 0, M, 1.0f, 1.0f, 0, 5, 0, 0, M, 0 };

/* Return x rounded to bf16 with the random bits that base/philox.h assigns to an element of array 0, 1 or 2. */
static uint16_t stochastic(float x, int array, int64_t element, int64_t update)
{
    const uint32_t key[2] = { 42, MEG_PHILOX_ROUNDING + 4 * 5 + (uint32_t)array };
    const uint32_t counter[4] = { (uint32_t)(element / 8), 0, (uint32_t)update, 0 };
    uint32_t word[4], bits;

    meg_philox(word, key, counter);
    bits = word[element % 8 / 2] >> (element % 2 ? 16 : 0) & 0xffff;
    return (uint16_t)((meg_bits_of(x) + bits) >> 16);
}

/* bf16 states have the values of an f32 step from the same inputs, rounded as defined. */
static void adamw_rounds_bf16_stochastically(const struct meg_ops *ops)
{
    const struct meg_adam adam = { 0.9f, 0.999f, 1e-8f };
    const struct meg_step_hparams step = { { 1e-3f, 0 }, 0.1f, 0.5f, 0.4f, 1.0f, 0, 9 };
    struct state_bf16 *s = calloc(1, sizeof *s), *other = calloc(1, sizeof *other);
    struct state f = { zeros(M, 4), zeros(M, 4), zeros(M, 4), zeros(M, 4) };
    uint16_t *copy = zeros(M, 2);
    struct meg_update_arrays x;

    fill(s);
    for (int i = 0; i < M; i++) {
        f.w[i] = meg_from_bf16(s->w[i]);
        f.m[i] = meg_from_bf16(s->m[i]);
        f.v[i] = meg_from_bf16(s->v[i]);
        f.g[i] = s->g[i];
    }
    x = arrays(&f);
    x.copy = (struct meg_array){ copy, MEG_DTYPE_BF16 };
    MEG_CALL(ops, NULL, adamw, .arrays = &x, .range = &all_of_m, .nranges = 1, .adam = &adam, .step = &step);
    *other = *s;
    omp_set_num_threads(2);
    update_bf16(ops, s, all_of_m, 9);
    omp_set_num_threads(1);
    update_bf16(ops, other, all_of_m, 9);
    assert_memory_equal(s, other, sizeof *s);
    for (int i = 0; i < M; i++) {
        assert_int_equal(copy[i], meg_to_bf16(f.w[i]));
        assert_int_equal(s->w[i], stochastic(f.w[i], 0, i, 9));
        assert_int_equal(s->m[i], stochastic(f.m[i], 1, i, 9));
        assert_int_equal(s->v[i], stochastic(f.v[i], 2, i, 9));
    }
    s->g[3] = NAN;
    update_bf16(ops, s, all_of_m, 9);
    assert_true(isnan(meg_from_bf16(s->w[3])) && isfinite(meg_from_bf16(s->w[4])));
    state_free(&f);
    free(copy);
    free(s);
    free(other);
}

/* A shard of the columns, and a part of the elements, are rounded like the same elements of the complete parameter. */
static void rounding_does_not_depend_on_shards(const struct meg_ops *ops)
{
    enum { C0 = 11, C1 = 40, WIDTH = C1 - C0 };
    const struct meg_update_range columns = { 0, ROWS * WIDTH, 1.0f, 1.0f, 0, 5, 0, C0, WIDTH, COLS };
    /* elements 100 to 999 of the parameter, stored from index 2 on */
    const struct meg_update_range part = { 2, 902, 1.0f, 1.0f, 0, 5, 100, 0, M, 0 };
    struct state_bf16 *all = calloc(1, sizeof *all), *s = calloc(1, sizeof *s), *t = calloc(1, sizeof *t);

    fill(all);
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < WIDTH; c++) {
            const int to = r * WIDTH + c, from = r * COLS + C0 + c;

            s->w[to] = all->w[from];
            s->m[to] = all->m[from];
            s->v[to] = all->v[from];
            s->g[to] = all->g[from];
        }
    memcpy(t->w + 2, all->w + 100, 900 * sizeof *t->w);
    memcpy(t->m + 2, all->m + 100, 900 * sizeof *t->m);
    memcpy(t->v + 2, all->v + 100, 900 * sizeof *t->v);
    memcpy(t->g + 2, all->g + 100, 900 * sizeof *t->g);
    update_bf16(ops, all, all_of_m, 3);
    update_bf16(ops, s, columns, 3);
    update_bf16(ops, t, part, 3);
    for (int r = 0; r < ROWS; r++) {
        assert_memory_equal(s->w + r * WIDTH, all->w + r * COLS + C0, WIDTH * sizeof *s->w);
        assert_memory_equal(s->v + r * WIDTH, all->v + r * COLS + C0, WIDTH * sizeof *s->v);
    }
    assert_memory_equal(t->w + 2, all->w + 100, 900 * sizeof *t->w);
    assert_memory_equal(t->m + 2, all->m + 100, 900 * sizeof *t->m);
    assert_true(t->w[1] == 0 && t->w[902] == 0);
    free(all);
    free(s);
    free(t);
}

/*
 * Stochastic rounding is unbiased: if one update of the same state is repeated with different random bits, the mean of
 * the stored values agrees with the exact value.
 */
static void rounding_is_unbiased(const struct meg_ops *ops)
{
    enum { UPDATES = 4000 };
    struct state_bf16 *begin = calloc(1, sizeof *begin), *s = calloc(1, sizeof *s);
    double sum = 0, want = 0, step = 0;

    fill(begin);
    /* v = 1 decays to 0.999, nearer to 1 than to the next lower bf16: rounding to nearest would not change v */
    for (int i = 0; i < M; i++) {
        begin->v[i] = meg_to_bf16(1);
        begin->g[i] = 0;
    }
    for (int64_t u = 1; u <= UPDATES; u++) {
        *s = *begin;
        update_bf16(ops, s, all_of_m, u);
        for (int i = 0; i < M; i++)
            sum += meg_from_bf16(s->v[i]);
    }
    want = 0.999f;
    step = 1.0 / 256; /* from 1 to the next lower bf16 */
    /* standard deviation of one value: step * sqrt(p (1 - p)) with p = 0.256 */
    near(sum / ((double)UPDATES * M), want, 5 * step * sqrt(0.256 * 0.744 / ((double)UPDATES * M)), "mean", 0, 0);
    free(begin);
    free(s);
}

static void memory(const struct meg_ops *ops)
{
    static const size_t sizes[] = { 1, 64, 100, 3u << 20, (9u << 20) + 5 };
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

int main(void)
{
    static const struct ops_case cases[] = {
        { "AdamW agrees with f64", adamw },
        { "SGD agrees with f64", sgd },
        { "AdamW rounds bf16 arrays stochastically, as defined", adamw_rounds_bf16_stochastically },
        { "stochastic rounding does not depend on shards", rounding_does_not_depend_on_shards },
        { "stochastic rounding is unbiased", rounding_is_unbiased },
        { "memory is zeroed and aligned", memory },
    };
    return run_cases(cases, LEN(cases));
}
