/* ops_qk_norm.c - RMSNorm of heads with rotary embedding against f64, gradients against central differences. */
#include "ops.h"

enum { S = 7, B = 3, G = 2, HEADS = 3, POSITIONS = 40, NROWS = S * B * G * HEADS };

/*
 * Inputs of the f64 reference: x and dy are dense [s,b,g,heads,d], and w is [d].  They have the values that the
 * operations read, rounded to the types of the test.
 */
struct qk {
    struct meg_qk_norm q;
    double *x, *w;
    const double *dy;
};

/* Compute head i of y from head i of x. */
static void head64(const struct qk *a, int64_t i, double *y)
{
    const struct meg_qk_norm *q = &a->q;
    const double *x = a->x + i * q->d;
    const int64_t at = q->position[i / (G * HEADS)] * q->half;
    double s2 = 0.0, rs;

    for (int64_t c = 0; c < q->d; c++)
        s2 += x[c] * x[c];
    rs = 1.0 / sqrt(s2 / (double)q->d + (double)q->eps);
    for (int64_t c = 0; c < q->d; c++)
        y[c] = x[c] * rs * a->w[c];
    for (int64_t p = 0; p < q->half; p++) {
        const int64_t first = q->is_interleaved ? 2 * p : p, second = q->is_interleaved ? 2 * p + 1 : p + q->half;
        const double u = y[first], v = y[second], co = q->cos[at + p], si = q->sin[at + p];

        y[first] = u * co - v * si;
        y[second] = v * co + u * si;
    }
}

static double loss(void *arg)
{
    const struct qk *a = arg;
    double y[64], s = 0.0;

    for (int64_t i = 0; i < NROWS; i++) {
        head64(a, i, y);
        for (int64_t c = 0; c < a->q.d; c++)
            s += a->dy[i * a->q.d + c] * y[c];
    }
    return s;
}

/* Return a view of random heads of type t, with padding after each group and each row. */
static struct meg_heads rnd_heads(enum meg_dtype t, int64_t d)
{
    const int64_t ld_g = (HEADS + 1) * d, ld = G * ld_g + 3;
    const struct meg_mat m = rnd_mat_of(t, S * B, ld, 0);

    return (struct meg_heads){ m.p, t, B * ld, ld, ld_g, d };
}

/* Return the elements of all heads, [s,b,g,heads,d]. */
static float *dense_heads(struct meg_heads h, int64_t d)
{
    float *out = malloc((size_t)(NROWS * d) * sizeof *out);

    for (int64_t i = 0; i < NROWS; i++) {
        const int64_t row = i / (G * HEADS), j = i / HEADS % G, k = i % HEADS;
        const int64_t first = row / B * h.ld_s + row % B * h.ld_b + j * h.ld_g + k * h.ld_h;
        const struct meg_mat m = { (char *)h.p + (size_t)first * meg_dtype_size(h.dtype), h.dtype, 1, d, d };

        for (int64_t c = 0; c < d; c++)
            out[i * d + c] = at(m, 0, c);
    }
    return out;
}

static void check(const struct meg_ops *ops, int64_t d, int64_t half, int is_interleaved, enum meg_dtype t,
                  enum meg_dtype grad)
{
    float angles[2][POSITIONS * 32], rstd[NROWS], *xs, *dys, *ys, *dxs, *once;
    int32_t position[S * B];
    struct meg_heads x = rnd_heads(t, d), y = rnd_heads(t, d), dy = rnd_heads(t, d), dx = rnd_heads(t, d);
    const struct meg_mat w = rnd_mat_of(t, 1, d, 0), dw = rnd_mat_of(grad, 1, d, 0);
    struct qk a = {
        { S, B, G, HEADS, d, 1e-3f, half, is_interleaved, angles[0], angles[1], position }, NULL, NULL, NULL
    };
    const struct fd fx = { loss, &a, 60 * EPS, t }, fw = { loss, &a, 400 * EPS, grad };
    uint64_t h[2] = { 0, 0 };
    double *y64 = malloc((size_t)d * sizeof *y64), *dy64;

    for (int64_t i = 0; i < POSITIONS * half; i++) {
        const double angle = 9.0 * rnd();

        angles[0][i] = (float)cos(angle);
        angles[1][i] = (float)sin(angle);
    }
    for (int i = 0; i < S * B; i++)
        position[i] = (i * 7) % POSITIONS;
    for (int k = 0; k < 2; k++) {
        omp_set_num_threads(k ? 2 : 1);
        MEG_CALL(ops, NULL, qk_norm_fwd, .q = &a.q, .y = y, .rstd = rstd, .x = x, .w = w.p);
        MEG_CALL(ops, NULL, qk_norm_bwd, .q = &a.q, .dx = dx, .dw = dw.p, .grad = grad, .dy = dy, .x = x, .w = w.p,
                 .rstd = rstd);
        ys = dense_heads(y, d);
        dxs = dense_heads(dx, d);
        digest(h + k, ys, (size_t)(NROWS * d) * sizeof *ys);
        digest(h + k, dxs, (size_t)(NROWS * d) * sizeof *dxs);
        digest(h + k, rstd, sizeof rstd);
        digest_mat(h + k, dw);
        if (k == 0) {
            free(ys);
            free(dxs);
        }
    }
    assert_int_equal(h[0], h[1]);

    xs = dense_heads(x, d);
    dys = dense_heads(dy, d);
    a.x = to_f64(xs, NROWS * d);
    a.dy = dy64 = to_f64(dys, NROWS * d);
    a.w = dense64(w);
    for (int64_t i = 0; i < NROWS; i++) {
        head64(&a, i, y64);
        for (int64_t c = 0; c < d; c++)
            near_of(t, ys[i * d + c], y64[c], 16 * EPS, "y", i, c);
    }
    fd_check(&fx, a.x, NROWS * d, dxs, 200, "dx");
    once = dense32(dw);
    fd_check(&fw, a.w, d, once, d, "dw");

    MEG_CALL(ops, NULL, qk_norm_bwd, .q = &a.q, .dx = dy, .dw = dw.p, .grad = grad, .dy = dy, .x = x, .w = w.p,
             .rstd = rstd, .accumulate = true); /* in place, adding to dw */
    free(dxs);
    dxs = dense_heads(dx, d);
    free(dys);
    dys = dense_heads(dy, d);
    assert_memory_equal(dys, dxs, (size_t)(NROWS * d) * sizeof *dxs);
    for (int64_t c = 0; c < d; c++)
        near_of(grad, at(dw, 0, c), 2.0 * (double)once[c], 400 * EPS, "dw added", 0, c);

    free(x.p);
    free(y.p);
    free(dy.p);
    free(dx.p);
    free(w.p);
    free(dw.p);
    free(xs);
    free(dys);
    free(ys);
    free(dxs);
    free(once);
    free(a.x);
    free(a.w);
    free(dy64);
    free(y64);
}

static void all_types(const struct meg_ops *ops)
{
    for (int t = MEG_DTYPE_F32; t <= MEG_DTYPE_F16; t++)
        for (int grad = MEG_DTYPE_F32; grad <= MEG_DTYPE_F16; grad++) {
            check(ops, 16, 8, 0, (enum meg_dtype)t, (enum meg_dtype)grad);
            check(ops, 22, 11, 1, (enum meg_dtype)t, (enum meg_dtype)grad);
            check(ops, 22, 3, 0, (enum meg_dtype)t, (enum meg_dtype)grad);
            check(ops, 9, 0, 0, (enum meg_dtype)t, (enum meg_dtype)grad);
        }
}

/* The result equals that of norm_fwd, with the heads as rows of a matrix, and then rope. */
static void equals_norm_and_rope(const struct meg_ops *ops)
{
    enum { D = 24 };
    float rstd[NROWS], want_rstd[NROWS];
    int32_t position[S * B];
    float angles[2][POSITIONS * D / 2];
    const struct meg_mat x = rnd_mat(NROWS, D, 0), w = rnd_mat(1, D, 0), y = rnd_mat(NROWS, D, 0),
                         want = rnd_mat(NROWS, D, 0);
    const struct meg_qk_norm q = { S, B, G, HEADS, D, 1e-5f, D / 2, 0, angles[0], angles[1], position };
    const int64_t ld = G * HEADS * D;
    const struct meg_heads xh = { x.p, MEG_DTYPE_F32, B * ld, ld, HEADS * D, D };
    const struct meg_heads yh = { y.p, MEG_DTYPE_F32, B * ld, ld, HEADS * D, D };
    const struct meg_heads wanth = { want.p, MEG_DTYPE_F32, B * ld, ld, HEADS * D, D };

    for (int i = 0; i < POSITIONS * D / 2; i++) {
        angles[0][i] = (float)rnd();
        angles[1][i] = (float)rnd();
    }
    for (int i = 0; i < S * B; i++)
        position[i] = (i * 11) % POSITIONS;
    MEG_CALL(ops, NULL, qk_norm_fwd, .q = &q, .y = yh, .rstd = rstd, .x = xh, .w = w.p);
    MEG_CALL(ops, NULL, norm_fwd, .type = MEG_NORM_RMS, .y = want, .rstd = want_rstd, .x = x, .w = w.p, .eps = q.eps);
    MEG_CALL(ops, NULL, rope, .x = wanth, .s = S, .b = B, .g = G, .heads = HEADS, .half = D / 2, .cos = angles[0],
             .sin = angles[1], .position = position, .sign = 1);
    for (int64_t r = 0; r < NROWS; r++) {
        near(rstd[r], (double)want_rstd[r], 4 * EPS * (double)want_rstd[r], "rstd", r, 0);
        for (int64_t c = 0; c < D; c++)
            near(at(y, r, c), (double)at(want, r, c), 16 * EPS, "y", r, c);
    }
    free(x.p);
    free(w.p);
    free(y.p);
    free(want.p);
}

int main(void)
{
    static const struct ops_case cases[] = {
        { "QK-norm with rotary embedding and its gradients agree with f64", all_types },
        { "QK-norm with rotary embedding equals RMSNorm, then rope", equals_norm_and_rope },
    };
    return run_cases(cases, LEN(cases));
}
