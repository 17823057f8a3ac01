/* Linear layers with their epilogues against f64, and their gradients against central differences. */
#include "ops.h"

static double act64(enum meg_act a, double x)
{
    switch (a) {
    case MEG_ACT_GELU_TANH:
        return 0.5 * x * (1.0 + tanh(sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
    case MEG_ACT_GELU_ERF:
        return 0.5 * x * (1.0 + erf(x / sqrt(2.0)));
    default:
        return x;
    }
}

static const struct shape {
    int64_t n, in, out;
} shapes[] = { { 1, 1, 1 },    { 3, 5, 7 },   { 17, 33, 65 },  { 260, 40, 390 },
               { 1, 96, 515 }, { 600, 9, 3 }, { 16, 70, 129 }, { 6, 64, 3 } };

/* One linear layer: x [n,in], pre-activations it may have come from, w [out,in], bias, dy [n,out]. */
struct layer {
    struct shape s;
    enum meg_act act;
    struct meg_mat x, w, dy;
    float *bias;
    struct meg_linear *plan;
};

static struct layer layer_new(const struct meg_ops *ops, struct shape s, enum meg_act act)
{
    const struct meg_linear_desc desc = { MEG_DTYPE_F32, s.n, s.in, s.out };
    struct layer l = { s,
                       act,
                       rnd_mat(s.n, s.in, 3),
                       rnd_mat(s.out, s.in, 1),
                       rnd_mat(s.n, s.out, 2),
                       rnd_new(s.out),
                       ops->linear_create(&desc) };
    return l;
}

static void layer_free(const struct meg_ops *ops, struct layer *l)
{
    ops->linear_destroy(l->plan);
    free(l->x.p);
    free(l->w.p);
    free(l->dy.p);
    free(l->bias);
}

/* x w^T + bias in f64, and the sum of magnitudes that its rounding error grows with. */
static double dot64(const struct layer *l, int64_t r, int64_t c, int has_bias, double *size)
{
    double s = has_bias ? l->bias[c] : 0.0;
    *size = fabs(s);
    for (int64_t k = 0; k < l->s.in; k++) {
        s += (double)at(l->x, r, k) * at(l->w, c, k);
        *size += fabs((double)at(l->x, r, k) * at(l->w, c, k));
    }
    return s;
}

/* A sum of k products rounds at most k times; errors have either sign, so the root of k with room of 4. */
static double dot_tol(int64_t k, double size)
{
    return (4.0 + 2.0 * sqrt((double)k)) * EPS * size;
}

static void forward(const struct meg_ops *ops)
{
    for (size_t i = 0; i < LEN(shapes); i++)
        for (int act = MEG_ACT_NONE; act <= MEG_ACT_GELU_ERF; act++)
            for (int opt = 0; opt < 4; opt++) { /* with bias, keeping pre */
                struct layer l = layer_new(ops, shapes[i], (enum meg_act)act);
                uint64_t h[2] = { 0, 0 };
                for (int k = 0; k < 2; k++) {
                    struct meg_mat y = rnd_mat(l.s.n, l.s.out, 2), pre = rnd_mat(l.s.n, l.s.out, 4);
                    omp_set_num_threads(k ? 2 : 1);
                    ops->linear_fwd(NULL, l.plan, y, opt & 2 ? pre : no_mat, l.x, l.w,
                                    opt & 1 ? l.bias : NULL, l.act);
                    digest_mat(h + k, y);
                    for (int64_t r = 0; r < l.s.n; r++)
                        for (int64_t c = 0; c < l.s.out; c++) {
                            double size, want = dot64(&l, r, c, opt & 1, &size),
                                         tol = dot_tol(l.s.in, size);
                            if (opt & 2 && act != MEG_ACT_NONE)
                                near(at(pre, r, c), want, tol, "pre", r, c);
                            /* |gelu'| <= 1.13; the activation itself is within 8 half ulps of x */
                            near(at(y, r, c), act64(l.act, want), 1.2 * tol + 8 * EPS * fabs(want),
                                 "y", r, c);
                        }
                    for (int64_t r = 0; r < l.s.n; r++)
                        assert_true(isnan(((float *)y.p)[r * y.ld + l.s.out]));
                    free(y.p);
                    free(pre.p);
                }
                assert_int_equal(h[0], h[1]);
                layer_free(ops, &l);
            }
}

/* sum dy (act(pre) w^T), a function of pre or of w */
struct loss {
    struct layer *l;
    double *pre, *w;
};

static double loss(void *arg)
{
    const struct loss *a = arg;
    const struct layer *l = a->l;
    double s = 0.0;
    for (int64_t r = 0; r < l->s.n; r++)
        for (int64_t k = 0; k < l->s.in; k++) {
            const double x = act64(l->act, a->pre[r * l->s.in + k]);
            for (int64_t c = 0; c < l->s.out; c++)
                s += at(l->dy, r, c) * x * a->w[c * l->s.in + k];
        }
    return s;
}

static double *dense64(struct meg_mat m)
{
    double *d = malloc((size_t)(m.rows * m.cols) * sizeof *d);
    for (int64_t i = 0; i < m.rows * m.cols; i++)
        d[i] = at(m, i / m.cols, i % m.cols);
    return d;
}

static void backward(const struct meg_ops *ops)
{
    for (size_t i = 0; i < 3; i++)
        for (int act = MEG_ACT_NONE; act <= MEG_ACT_GELU_ERF; act++) {
            struct layer l = layer_new(ops, shapes[i], (enum meg_act)act);
            struct meg_mat dx = meg_mat(zeros(l.s.n * l.s.in, 4), MEG_DTYPE_F32, l.s.n, l.s.in);
            struct meg_mat dw = meg_mat(zeros(l.s.out * l.s.in, 4), MEG_DTYPE_F32, l.s.out, l.s.in);
            struct loss a = { &l, dense64(l.x), dense64(l.w) };
            /* terms are at most 1, and 1.13 behind a gelu's derivative; differences add 1e-9 */
            struct fd f = { loss, &a, 1.2 * dot_tol(l.s.out, (double)l.s.out) + 1e-7 };
            ops->linear_bwd_data(NULL, l.plan, dx, l.dy, l.w, act == MEG_ACT_NONE ? no_mat : l.x,
                                 l.act);
            fd_check(&f, a.pre, l.s.n * l.s.in, dx.p, 300, "dx");
            l.act = MEG_ACT_NONE;
            f.tol = dot_tol(l.s.n, (double)l.s.n) + 1e-7;
            ops->linear_bwd_weight(NULL, l.plan, dw, NULL, l.dy, l.x);
            fd_check(&f, a.w, l.s.out * l.s.in, dw.p, 300, "dw");
            free(a.pre);
            free(a.w);
            free(dx.p);
            free(dw.p);
            layer_free(ops, &l);
        }
}

/* Shapes of several blocks: the same sums in f64, added to what was there, for any number of threads. */
static void gradients_of_many_blocks(const struct meg_ops *ops)
{
    struct layer l = layer_new(ops, (struct shape){ 270, 400, 530 }, MEG_ACT_NONE);
    uint64_t h[2] = { 0, 0 };
    for (int k = 0; k < 2; k++) {
        struct meg_mat dx = rnd_mat(l.s.n, l.s.in, 1), dw = rnd_mat(l.s.out, l.s.in, 3);
        float *db = zeros(l.s.out, 4);
        for (int64_t i = 0; i < l.s.out * dw.ld; i++)
            ((float *)dw.p)[i] = 2.0f;
        for (int64_t c = 0; c < l.s.out; c++)
            db[c] = 3.0f;
        omp_set_num_threads(k ? 2 : 1);
        ops->linear_bwd_data(NULL, l.plan, dx, l.dy, l.w, no_mat, MEG_ACT_NONE);
        ops->linear_bwd_weight(NULL, l.plan, dw, db, l.dy, l.x);
        digest_mat(h + k, dx);
        digest_mat(h + k, dw);
        digest(h + k, db, (size_t)l.s.out * 4);
        for (int64_t r = 0; r < l.s.n; r += 7)
            for (int64_t c = 0; c < l.s.in; c++) {
                double want = 0.0;
                for (int64_t j = 0; j < l.s.out; j++)
                    want += (double)at(l.dy, r, j) * at(l.w, j, c);
                near(at(dx, r, c), want, dot_tol(l.s.out, (double)l.s.out / 4), "dx", r, c);
            }
        for (int64_t r = 0; r < l.s.out; r += 5) {
            double want = 3.0;
            for (int64_t t = 0; t < l.s.n; t++)
                want += at(l.dy, t, r);
            near(db[r], want, dot_tol(l.s.n, (double)l.s.n / 2), "dbias", r, 0);
            for (int64_t c = 0; c < l.s.in; c++) {
                want = 2.0;
                for (int64_t t = 0; t < l.s.n; t++)
                    want += (double)at(l.dy, t, r) * at(l.x, t, c);
                near(at(dw, r, c), want, dot_tol(l.s.n, (double)l.s.n / 4), "dw", r, c);
            }
        }
        free(dx.p);
        free(dw.p);
        free(db);
    }
    assert_int_equal(h[0], h[1]);
    layer_free(ops, &l);
}

static void nan_and_infinity_come_through(const struct meg_ops *ops)
{
    const float bad[] = { NAN, INFINITY, -INFINITY };
    for (int act = MEG_ACT_NONE; act <= MEG_ACT_GELU_ERF; act++)
        for (size_t i = 0; i < LEN(bad); i++) {
            struct layer l = layer_new(ops, (struct shape){ 40, 24, 50 }, (enum meg_act)act);
            struct meg_mat y = rnd_mat(40, 50, 0), dx = rnd_mat(40, 24, 0);
            ((float *)l.x.p)[5 * l.x.ld + 3] = bad[i];
            ops->linear_fwd(NULL, l.plan, y, no_mat, l.x, l.w, l.bias, l.act);
            for (int64_t c = 0; c < 50; c++)
                assert_false(isfinite(at(y, 5, c)));
            ((float *)l.dy.p)[7 * l.dy.ld + 2] = bad[i];
            ops->linear_bwd_data(NULL, l.plan, dx, l.dy, l.w, no_mat, MEG_ACT_NONE);
            for (int64_t c = 0; c < 24; c++)
                assert_false(isfinite(at(dx, 7, c)));
            free(y.p);
            free(dx.p);
            layer_free(ops, &l);
        }
}

int main(void)
{
    static const struct ops_case cases[] = {
        { "y = act(x w^T + bias)", forward },
        { "gradients agree with differences", backward },
        { "gradients of many blocks", gradients_of_many_blocks },
        { "NaN and infinity come through", nan_and_infinity_come_through },
    };
    return run_cases(cases, LEN(cases));
}
