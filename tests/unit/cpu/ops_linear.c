/* ops_linear.c - linear layers (bias, activation) against f64, gradients against central differences. */
#include "ops.h"

static double act64(enum meg_act a, double x)
{
    switch (a) {
    case MEG_ACT_GELU_TANH: return 0.5 * x * (1.0 + tanh(sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
    case MEG_ACT_GELU_ERF: return 0.5 * x * (1.0 + erf(x / sqrt(2.0)));
    case MEG_ACT_TANH: return tanh(x);
    case MEG_ACT_RELU: return x < 0 ? 0 : x;
    default: return x;
    }
}

static const struct shape {
    int64_t n, in, out;
} shapes[] = { { 1, 1, 1 },    { 3, 5, 7 },   { 17, 33, 65 },  { 260, 12, 390 },
               { 1, 96, 515 }, { 600, 9, 3 }, { 16, 70, 129 }, { 6, 64, 3 } };

/* Dtypes of inputs, weights, outputs and gradients. */
struct types {
    enum meg_dtype x, w, y, grad;
};

/*
 * Set *k to combination i of types: all 27 of x, w and y for small shapes, the three of equal types for others.  Return
 * false at the end.
 */
static int next_kinds(struct types *k, const struct shape *s, int i)
{
    const int step = s->n * s->in * s->out < 20000 ? 1 : 13;
    i *= step;
    *k = (struct types){ (enum meg_dtype)(i % 3), (enum meg_dtype)(i / 3 % 3), (enum meg_dtype)(i / 9),
                         (enum meg_dtype)(i * 2 % 3) };
    return i < 27;
}

/*
 * One linear layer: x [n,in], w [out,in], bias [1,out], dy [n,out].  In gradient tests with an activation, x has the
 * pre-activations, and act(x) is the input of the layer.
 */
struct layer {
    struct shape s;
    enum meg_act act;
    struct meg_mat x, w, dy, bias;
    struct meg_linear_plan *plan;
};

static struct layer layer_new(const struct meg_ops *ops, struct shape s, enum meg_act act, struct types k)
{
    const struct meg_linear_desc desc = { s.n, s.in, s.out, k.x, k.w, k.y, k.grad };
    const char *why;
    struct layer l = { s,
                       act,
                       rnd_mat_of(k.x, s.n, s.in, 3),
                       rnd_mat_of(k.w, s.out, s.in, 1),
                       rnd_mat_of(k.y, s.n, s.out, 2),
                       rnd_mat_of(k.w, 1, s.out, 0),
                       ops->linear_create(&desc, &why) };
    return l;
}

static void layer_free(const struct meg_ops *ops, struct layer *l)
{
    ops->linear_destroy(l->plan);
    free(l->x.p);
    free(l->w.p);
    free(l->dy.p);
    free(l->bias.p);
}

/*
 * Return element (r, c) of x w^T + bias in f64, and set *size to the sum of the magnitudes of its terms, to which the
 * rounding error is proportional.
 */
static double dot64(const struct layer *l, int64_t r, int64_t c, int has_bias, double *size)
{
    double s = has_bias ? at(l->bias, 0, c) : 0.0;
    *size = fabs(s);
    for (int64_t k = 0; k < l->s.in; k++) {
        s += (double)at(l->x, r, k) * at(l->w, c, k);
        *size += fabs((double)at(l->x, r, k) * at(l->w, c, k));
    }
    return s;
}

/* A sum of k products is rounded k times with errors of either sign: allow 4 + 2 sqrt(k) half ulps of `size`. */
static double dot_tol(int64_t k, double size)
{
    return (4.0 + 2.0 * sqrt((double)k)) * EPS * size;
}

struct fwd_options {
    bool has_bias, keeps_pre, accumulate;
};

static void forward_of(const struct meg_ops *ops, struct shape s, enum meg_act act, struct types types,
                       struct fwd_options o)
{
    const bool has_pre = o.keeps_pre && act != MEG_ACT_NONE;
    const double added = o.accumulate ? 0.5 : 0.0;
    struct layer l = layer_new(ops, s, act, types);
    uint64_t h[2] = { 0, 0 };
    for (int k = 0; k < 2; k++) {
        struct meg_mat y = rnd_mat_of(types.y, s.n, s.out, 2), pre = rnd_mat_of(types.y, s.n, s.out, 4);
        fill_mat(has_pre ? pre : y, o.accumulate ? (float)added : NAN);
        omp_set_num_threads(k ? 2 : 1);
        MEG_CALL(ops, NULL, linear_fwd, .plan = l.plan, .y = y, .pre = o.keeps_pre ? pre : meg_no_mat(), .x = l.x,
                 .w = l.w, .bias = o.has_bias ? l.bias.p : NULL, .act = act, .accumulate = o.accumulate);
        digest_mat(h + k, y);
        if (has_pre)
            digest_mat(h + k, pre);
        for (int64_t r = 0; k == 0 && r < s.n; r++) {
            for (int64_t c = 0; c < s.out; c++) {
                double size, want = dot64(&l, r, c, o.has_bias, &size) + added, tol = dot_tol(s.in, size + fabs(added));
                if (has_pre)
                    near_of(types.y, at(pre, r, c), want, tol, "pre", r, c);
                /* |gelu'| <= 1.13; the activation itself is within 8 half ulps of x */
                near_of(types.y, at(y, r, c), act64(act, want), 1.2 * tol + 8 * EPS * fabs(want), "y", r, c);
            }
            assert_true(isnan(at(y, r, s.out)));
        }
        free(y.p);
        free(pre.p);
    }
    assert_int_equal(h[0], h[1]);
    layer_free(ops, &l);
}

static void forward(const struct meg_ops *ops)
{
    struct types types;
    for (size_t i = 0; i < LEN(shapes); i++)
        for (int act = MEG_ACT_NONE; act <= MEG_ACT_RELU; act++)
            for (int opt = 0; opt < 4; opt++)
                for (int k = 0; next_kinds(&types, shapes + i, k); k++)
                    forward_of(ops, shapes[i], (enum meg_act)act, types,
                               (struct fwd_options){ opt & 1, opt & 2, (act + opt + k) % 2 });
}

/* Arguments of loss, which returns the sum of dy * (act(pre) w^T), a function of pre and of w. */
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

/* Check that linear_bwd_data with accumulate adds to the gradient of act(x): dx becomes (dx + dy w) * act'(x). */
static void accumulated_dx(const struct meg_ops *ops, const struct layer *l, struct meg_mat dx)
{
    struct meg_mat sum = rnd_mat_of(dx.dtype, dx.rows, dx.cols, 0);

    fill_mat(sum, 1.0f);
    MEG_CALL(ops, NULL, linear_bwd_data, .plan = l->plan, .dx = sum, .dy = l->dy, .w = l->w,
             .pre = l->act == MEG_ACT_NONE ? meg_no_mat() : l->x, .act = l->act, .accumulate = true);
    for (int64_t r = 0; r < dx.rows; r++)
        for (int64_t c = 0; c < dx.cols; c++) {
            const double x = at(l->x, r, c), h = 1e-5;
            const double slope = (act64(l->act, x + h) - act64(l->act, x - h)) / (2 * h);

            if (l->act != MEG_ACT_RELU || fabs(x) > h)
                near_of(dx.dtype, at(sum, r, c), at(dx, r, c) + slope, dot_tol(l->s.out, (double)l->s.out) + 1e-7,
                        "dx, accumulated", r, c);
        }
    free(sum.p);
}

static void backward_of(const struct meg_ops *ops, struct shape s, enum meg_act act, struct types types)
{
    struct layer l = layer_new(ops, s, act, types);
    struct meg_mat dx = rnd_mat_of(types.x, s.n, s.in, 0);
    struct meg_mat dw = rnd_mat_of(types.grad, s.out, s.in, 0);
    struct loss a = { &l, dense64(l.x), dense64(l.w) };
    /* A term is at most 1, or 1.13 after gelu'.  Central differences have an additional error of about 1e-9. */
    struct fd f = { loss, &a, 1.2 * dot_tol(s.out, (double)s.out) + 1e-7, types.x };
    float *got;
    MEG_CALL(ops, NULL, linear_bwd_data, .plan = l.plan, .dx = dx, .dy = l.dy, .w = l.w,
             .pre = act == MEG_ACT_NONE ? meg_no_mat() : l.x, .act = act);
    got = dense32(dx);
    fd_check(&f, a.pre, s.n * s.in, got, 80, "dx");
    if (types.x == MEG_DTYPE_F32) /* otherwise, dx is rounded before it is compared */
        accumulated_dx(ops, &l, dx);
    l.act = MEG_ACT_NONE;
    f.tol = dot_tol(s.n, (double)s.n) + 1e-7;
    f.type = types.grad;
    fill_mat(dw, NAN);
    MEG_CALL(ops, NULL, linear_bwd_weight, .plan = l.plan, .dw = dw, .dy = l.dy, .x = l.x);
    free(got);
    got = dense32(dw);
    fd_check(&f, a.w, s.out * s.in, got, 80, "dw");
    free(got);
    free(a.pre);
    free(a.w);
    free(dx.p);
    free(dw.p);
    layer_free(ops, &l);
}

static void backward(const struct meg_ops *ops)
{
    struct types types;
    for (size_t i = 0; i < 3; i++)
        for (int act = MEG_ACT_NONE; act <= MEG_ACT_RELU; act++)
            for (int k = 0; next_kinds(&types, shapes + i, k); k++)
                backward_of(ops, shapes[i], (enum meg_act)act, types);
}

/*
 * For shapes of several blocks, dx, dw and dbias agree with f64 and are equal for one and two threads.  They are added
 * to the previous values if accumulate is true; otherwise, they overwrite NaN.
 */
static void gradients_of_many_blocks_of(const struct meg_ops *ops, struct types types, bool accumulate)
{
    const double dx0 = accumulate ? 1.0 : 0.0, dw0 = accumulate ? 2.0 : 0.0, db0 = accumulate ? 3.0 : 0.0;
    struct layer l = layer_new(ops, (struct shape){ 270, 400, 530 }, MEG_ACT_NONE, types);
    uint64_t h[2] = { 0, 0 };
    for (int k = 0; k < 2; k++) {
        struct meg_mat dx = rnd_mat_of(types.x, l.s.n, l.s.in, 1), dw = rnd_mat_of(types.grad, l.s.out, l.s.in, 3);
        struct meg_mat db = rnd_mat_of(types.grad, 1, l.s.out, 0);
        fill_mat(dx, accumulate ? (float)dx0 : NAN);
        fill_mat(dw, accumulate ? (float)dw0 : NAN);
        fill_mat(db, accumulate ? (float)db0 : NAN);
        omp_set_num_threads(k ? 2 : 1);
        MEG_CALL(ops, NULL, linear_bwd_data, .plan = l.plan, .dx = dx, .dy = l.dy, .w = l.w, .accumulate = accumulate);
        MEG_CALL(ops, NULL, linear_bwd_weight, .plan = l.plan, .dw = dw, .dbias = db.p, .dy = l.dy, .x = l.x,
                 .accumulate = accumulate);
        digest_mat(h + k, dx);
        digest_mat(h + k, dw);
        digest_mat(h + k, db);
        for (int64_t r = 0; k == 0 && r < l.s.n; r += 7)
            for (int64_t c = 0; c < l.s.in; c++) {
                double want = dx0;
                for (int64_t j = 0; j < l.s.out; j++)
                    want += (double)at(l.dy, r, j) * at(l.w, j, c);
                near_of(types.x, at(dx, r, c), want, dot_tol(l.s.out, (double)l.s.out / 4), "dx", r, c);
            }
        for (int64_t r = 0; k == 0 && r < l.s.out; r += 5) {
            double want = db0;
            for (int64_t t = 0; t < l.s.n; t++)
                want += at(l.dy, t, r);
            near_of(types.grad, at(db, 0, r), want, dot_tol(l.s.n, (double)l.s.n / 2), "dbias", r, 0);
            for (int64_t c = 0; c < l.s.in; c++) {
                want = dw0;
                for (int64_t t = 0; t < l.s.n; t++)
                    want += (double)at(l.dy, t, r) * at(l.x, t, c);
                near_of(types.grad, at(dw, r, c), want, dot_tol(l.s.n, (double)l.s.n / 4), "dw", r, c);
            }
        }
        free(dx.p);
        free(dw.p);
        free(db.p);
    }
    assert_int_equal(h[0], h[1]);
    layer_free(ops, &l);
}

static void gradients_of_many_blocks(const struct meg_ops *ops)
{
    for (size_t i = 0; i < LEN(mixes); i++) {
        const struct mix m = mixes[i];
        for (int k = 0; k < 2; k++) {
            gradients_of_many_blocks_of(ops, (struct types){ m.branch, m.branch, m.stream, m.branch }, k);
            if (m.stream != m.branch)
                gradients_of_many_blocks_of(ops, (struct types){ m.branch, m.branch, m.branch, MEG_DTYPE_F32 }, k);
        }
    }
}

static void nan_and_infinity_propagate_of(const struct meg_ops *ops, enum meg_dtype t)
{
    const float bad[] = { NAN, INFINITY, -INFINITY };
    for (int act = MEG_ACT_NONE; act <= MEG_ACT_GELU_ERF; act++)
        for (size_t i = 0; i < LEN(bad); i++) {
            struct layer l =
                layer_new(ops, (struct shape){ 40, 24, 50 }, (enum meg_act)act, (struct types){ t, t, t, t });
            struct meg_mat y = rnd_mat_of(t, 40, 50, 0), dx = rnd_mat_of(t, 40, 24, 0);
            put(l.x, 5, 3, bad[i]);
            MEG_CALL(ops, NULL, linear_fwd, .plan = l.plan, .y = y, .x = l.x, .w = l.w, .bias = l.bias.p, .act = l.act);
            for (int64_t c = 0; c < 50; c++)
                assert_false(isfinite(at(y, 5, c)));
            put(l.dy, 7, 2, bad[i]);
            MEG_CALL(ops, NULL, linear_bwd_data, .plan = l.plan, .dx = dx, .dy = l.dy, .w = l.w);
            for (int64_t c = 0; c < 24; c++)
                assert_false(isfinite(at(dx, 7, c)));
            free(y.p);
            free(dx.p);
            layer_free(ops, &l);
        }
}

static void nan_and_infinity_propagate(const struct meg_ops *ops)
{
    for (int t = MEG_DTYPE_F32; t <= MEG_DTYPE_F16; t++)
        nan_and_infinity_propagate_of(ops, (enum meg_dtype)t);
}

/* A plan with a dtype that the CPU backend does not support, f64, at any position is refused with a reason. */
static void other_types_are_refused(const struct meg_ops *ops)
{
    for (int i = 0; i < 4; i++) {
        enum meg_dtype t[4] = { MEG_DTYPE_F32, MEG_DTYPE_BF16, MEG_DTYPE_F16, MEG_DTYPE_F32 };
        const char *why = NULL;

        t[i] = MEG_DTYPE_F64;
        assert_null(ops->linear_create(&(struct meg_linear_desc){ 4, 3, 2, t[0], t[1], t[2], t[3] }, &why));
        assert_non_null(strstr(why, "fp32, bf16 and fp16"));
    }
}

int main(void)
{
    static const struct ops_case cases[] = {
        { "y = act(x w^T + bias) agrees with f64", forward },
        { "gradients agree with central differences", backward },
        { "gradients of many blocks agree with f64", gradients_of_many_blocks },
        { "NaN and infinity propagate", nan_and_infinity_propagate },
        { "plans of other types are refused", other_types_are_refused },
    };
    return run_cases(cases, LEN(cases));
}
