/* ops_glu.c - gated linear units against f64, gradients against central differences. */
#include "ops.h"

static const int64_t shapes[][2] = { { 1, 1 }, { 3, 5 }, { 17, 33 }, { 3, 1100 } };

/* The limits are not bf16 or f16 values: no random value of these types is at a limit, where the derivative jumps. */
static const struct meg_glu units[] = {
    { MEG_GLU_SILU, 0, 0 },      { MEG_GLU_QUICK_GELU, 0, 0 },
    { MEG_GLU_GELU_TANH, 0, 0 }, { MEG_GLU_GELU_ERF, 0, 0 },
    { MEG_GLU_RELU, 0, 0 },      { MEG_GLU_SQUARED_RELU, 0, 0 },
    { MEG_GLU_SILU, 2.537f, 0 }, { MEG_GLU_QUICK_GELU, 3.141f, 1 }, /* of GPT-OSS, with a smaller limit */
    { MEG_GLU_RELU, 0, 0.5f },
};

struct glu {
    const struct meg_glu *unit;
    int64_t n, f;
    double *x64;
    struct meg_mat dy;
};

static double act64(enum meg_glu_type type, double x)
{
    switch (type) {
    case MEG_GLU_SILU: return x / (1.0 + exp(-x));
    case MEG_GLU_QUICK_GELU: return x / (1.0 + exp(-1.702 * x));
    case MEG_GLU_GELU_TANH: return 0.5 * x * (1.0 + tanh(sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
    case MEG_GLU_GELU_ERF: return 0.5 * x * erfc(-x / sqrt(2.0));
    case MEG_GLU_RELU: return fmax(x, 0.0);
    default: return fmax(x, 0.0) * fmax(x, 0.0);
    }
}

static double y64(const struct glu *g, int64_t r, int64_t c)
{
    double gate = g->x64[r * 2 * g->f + c], up = g->x64[r * 2 * g->f + g->f + c];

    if (g->unit->limit > 0) {
        gate = fmin(gate, g->unit->limit);
        up = fmax(fmin(up, g->unit->limit), -g->unit->limit);
    }
    return act64(g->unit->type, gate) * (up + g->unit->offset);
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

static void unit_of(const struct meg_ops *ops, const struct meg_glu *unit, int64_t n, int64_t f, enum meg_dtype tx,
                    enum meg_dtype ty)
{
    struct meg_mat x = rnd_mat_of(tx, n, 2 * f, 0), y = rnd_mat_of(ty, n, f, 2), dx = rnd_mat_of(tx, n, 2 * f, 0);
    struct glu g = { unit, n, f, NULL, rnd_mat_of(ty, n, f, 1) };
    /*
     * For gate and up below 6, gradients are up to 72 for the squared ReLU, and up to 7 for the other units.  The quick
     * GELU has twelve roundings: of alpha * a, exp (two), 1 + e, 1 / (1 + e), 1 - s, four products, the sum and the
     * result.
     */
    const double most = unit->type == MEG_GLU_SQUARED_RELU ? 72 : 7;
    const struct fd fd = { loss, &g, 12 * EPS * most, tx };
    uint64_t h[2] = { 0, 0 };
    float *got;
    for (int64_t k = 0; k < n * 2 * f; k++)
        put(x, 0, k, at(x, 0, k) * 6.0f);
    g.x64 = dense64(x);
    for (int k = 0; k < 2; k++) {
        omp_set_num_threads(k ? 2 : 1);
        MEG_CALL(ops, NULL, glu_fwd, .unit = unit, .y = y, .x = x);
        MEG_CALL(ops, NULL, glu_bwd, .unit = unit, .dx = dx, .dy = g.dy, .x = x);
        digest_mat(h + k, y);
        digest_mat(h + k, dx);
    }
    assert_int_equal(h[0], h[1]);
    for (int64_t r = 0; r < n; r++)
        for (int64_t c = 0; c < f; c++)
            near_of(ty, at(y, r, c), y64(&g, r, c), 8 * EPS * (0.1 + fabs(y64(&g, r, c))), "y", r, c);
    got = dense32(dx);
    fd_check(&fd, g.x64, n * 2 * f, got, 100, "dx");
    MEG_CALL(ops, NULL, glu_bwd, .unit = unit, .dx = x, .dy = g.dy, .x = x); /* in place */
    assert_memory_equal(x.p, dx.p, (size_t)(n * 2 * f) * meg_dtype_size(tx));
    free(x.p);
    free(y.p);
    free(dx.p);
    free(g.dy.p);
    free(g.x64);
    free(got);
}

static void all_units(const struct meg_ops *ops)
{
    for (size_t u = 0; u < LEN(units); u++)
        for (size_t i = 0; i < LEN(shapes); i++)
            for (int t = 0; t < 9; t++)
                unit_of(ops, &units[u], shapes[i][0], shapes[i][1], (enum meg_dtype)(t / 3), (enum meg_dtype)(t % 3));
}

static void extremes_and_nan(const struct meg_ops *ops)
{
    float x[] = { -200.0f, 200.0f, NAN, 2.0f, 2.0f, 2.0f, 1.0f, NAN }, y[4], dy[] = { 1.0f, 1.0f, 1.0f, 1.0f }, dx[8];
    const struct meg_mat mx = { x, MEG_DTYPE_F32, 1, 8, 8 }, my = { y, MEG_DTYPE_F32, 1, 4, 4 };
    const struct meg_mat mdy = { dy, MEG_DTYPE_F32, 1, 4, 4 }, mdx = { dx, MEG_DTYPE_F32, 1, 8, 8 };
    MEG_CALL(ops, NULL, glu_fwd, .unit = &units[0], .y = my, .x = mx);
    MEG_CALL(ops, NULL, glu_bwd, .unit = &units[0], .dx = mdx, .dy = mdy, .x = mx);
    near(y[0], 0.0, 0.0, "y", 0, 0);
    near(y[1], 400.0, 0.0, "y", 0, 1);
    assert_true(isnan(y[2]) && isnan(y[3]) && isnan(dx[2]) && isnan(dx[6]) && isnan(dx[3]));
    near(dx[0], 0.0, 0.0, "dx", 0, 0);
    near(dx[1], 2.0, 1e-6, "dx", 0, 1);
    for (size_t u = 1; u < LEN(units); u++) {
        MEG_CALL(ops, NULL, glu_fwd, .unit = &units[u], .y = my, .x = mx);
        MEG_CALL(ops, NULL, glu_bwd, .unit = &units[u], .dx = mdx, .dy = mdy, .x = mx);
        assert_true(isfinite(y[0]) && isfinite(y[1]) && isnan(y[2]) && isnan(y[3]));
        assert_true(isfinite(dx[0]) && isfinite(dx[1]) && isnan(dx[3]) && isnan(dx[6]));
    }
}

/* At a limit the gradient passes, as in PyTorch's clamp; beyond, it is 0. */
static void clamped_values_have_no_gradient(const struct meg_ops *ops)
{
    const struct meg_glu gpt_oss = { MEG_GLU_QUICK_GELU, 7, 1 };
    float x[] = { 7.0f, 7.5f, 1.0f, 1.0f, -9.0f, 1.0f, 2.0f, 7.0f, -7.5f, 2.0f }, y[5], dx[10];
    float dy[] = { 1.0f, 1.0f, 1.0f, 1.0f, 1.0f };
    const struct meg_mat mx = { x, MEG_DTYPE_F32, 1, 10, 10 }, my = { y, MEG_DTYPE_F32, 1, 5, 5 };
    const struct meg_mat mdy = { dy, MEG_DTYPE_F32, 1, 5, 5 }, mdx = { dx, MEG_DTYPE_F32, 1, 10, 10 };

    MEG_CALL(ops, NULL, glu_fwd, .unit = &gpt_oss, .y = my, .x = mx);
    MEG_CALL(ops, NULL, glu_bwd, .unit = &gpt_oss, .dx = mdx, .dy = mdy, .x = mx);
    near(y[1], act64(MEG_GLU_QUICK_GELU, 7) * 3, 1e-5, "y", 0, 1);
    near(y[3], act64(MEG_GLU_QUICK_GELU, 1) * -6, 1e-5, "y", 0, 3);
    assert_true(dx[0] != 0.0f && dx[1] == 0.0f && dx[4] != 0.0f);
    assert_true(dx[5] != 0.0f && dx[7] != 0.0f && dx[8] == 0.0f);
}

int main(void)
{
    static const struct ops_case cases[] = {
        { "gated linear units and their gradients agree with f64", all_units },
        { "clamped values have no gradient", clamped_values_have_no_gradient },
        { "extreme values stay finite and NaN propagates", extremes_and_nan },
    };
    return run_cases(cases, LEN(cases));
}
