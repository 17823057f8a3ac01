/* ops_swiglu.c - SwiGLU against f64, gradients against central differences. */
#include "ops.h"

static const int64_t shapes[][2] = { { 1, 1 }, { 3, 5 }, { 17, 33 }, { 3, 1100 } };

struct glu {
    int64_t n, f;
    double *x64;
    struct meg_mat dy;
};

static double silu64(double x)
{
    return x / (1.0 + exp(-x));
}

static double y64(const struct glu *g, int64_t r, int64_t c)
{
    return silu64(g->x64[r * 2 * g->f + c]) * g->x64[r * 2 * g->f + g->f + c];
}

static double loss(void *arg)
{
    const struct glu *g = arg;
    double s = 0.0;
    for (int64_t r = 0; r < g->n; r++)
        for (int64_t c = 0; c < g->f; c++)
            s += at(g->dy, r, c) * y64(g, r, c);
    return s;
}

static void swiglu_of(const struct meg_ops *ops, int64_t n, int64_t f, enum meg_dtype tx, enum meg_dtype ty)
{
    struct meg_mat x = rnd_mat_of(tx, n, 2 * f, 0), y = rnd_mat_of(ty, n, f, 2), dx = rnd_mat_of(tx, n, 2 * f, 0);
    struct glu g = { n, f, NULL, rnd_mat_of(ty, n, f, 1) };
    const struct fd fd = { loss, &g, 40 * EPS, tx };
    uint64_t h[2] = { 0, 0 };
    float *got;
    for (int64_t k = 0; k < n * 2 * f; k++)
        put(x, 0, k, at(x, 0, k) * 6.0f);
    g.x64 = dense64(x);
    for (int k = 0; k < 2; k++) {
        omp_set_num_threads(k ? 2 : 1);
        ops->swiglu_fwd(NULL, y, x);
        ops->swiglu_bwd(NULL, dx, g.dy, x);
        digest_mat(h + k, y);
        digest_mat(h + k, dx);
    }
    assert_int_equal(h[0], h[1]);
    for (int64_t r = 0; r < n; r++)
        for (int64_t c = 0; c < f; c++)
            near_of(ty, at(y, r, c), y64(&g, r, c), 8 * EPS * (0.1 + fabs(y64(&g, r, c))), "y", r, c);
    got = dense32(dx);
    fd_check(&fd, g.x64, n * 2 * f, got, 300, "dx");
    ops->swiglu_bwd(NULL, x, g.dy, x); /* in place */
    assert_memory_equal(x.p, dx.p, (size_t)(n * 2 * f) * meg_dtype_size(tx));
    free(x.p);
    free(y.p);
    free(dx.p);
    free(g.dy.p);
    free(g.x64);
    free(got);
}

static void swiglu(const struct meg_ops *ops)
{
    for (size_t i = 0; i < LEN(shapes); i++)
        for (int t = 0; t < 9; t++)
            swiglu_of(ops, shapes[i][0], shapes[i][1], (enum meg_dtype)(t / 3), (enum meg_dtype)(t % 3));
}

static void extremes_and_nan(const struct meg_ops *ops)
{
    float x[] = { -200.0f, 200.0f, NAN, 3.0f, 2.0f, 2.0f, 1.0f, NAN }, y[4], dy[] = { 1.0f, 1.0f, 1.0f, 1.0f }, dx[8];
    const struct meg_mat mx = { x, MEG_DTYPE_F32, 1, 8, 8 }, my = { y, MEG_DTYPE_F32, 1, 4, 4 };
    const struct meg_mat mdy = { dy, MEG_DTYPE_F32, 1, 4, 4 }, mdx = { dx, MEG_DTYPE_F32, 1, 8, 8 };
    ops->swiglu_fwd(NULL, my, mx);
    ops->swiglu_bwd(NULL, mdx, mdy, mx);
    near(y[0], 0.0, 0.0, "y", 0, 0);
    near(y[1], 400.0, 0.0, "y", 0, 1);
    assert_true(isnan(y[2]) && isnan(y[3]) && isnan(dx[2]) && isnan(dx[6]) && isnan(dx[3]));
    near(dx[0], 0.0, 0.0, "dx", 0, 0);
    near(dx[1], 2.0, 1e-6, "dx", 0, 1);
}

int main(void)
{
    static const struct ops_case cases[] = {
        { "SwiGLU and its gradients agree with f64", swiglu },
        { "extreme values stay finite and NaN propagates", extremes_and_nan },
    };
    return run_cases(cases, LEN(cases));
}
