/* Low-rank adapters of a linear layer: products and gradients against f64, and their parameters. */
#include "nn/low_rank.h"
#include "ops.h"
#include "parallel/mesh.h"

enum { N = 11, IN = 20, OUT = 13, RANK = 3, LARGEST = 16 };
static const double ALPHA = 6;

/* A layer with one rank's parameters and their gradients, which are random. */
struct fixture {
    struct meg_ctx c;
    struct meg_low_rank conf;
    struct meg_linear_shape shape;
    struct meg_params params;
    struct meg_binder b;
    struct meg_linear l;
    float *w, *g;
    struct meg_mat x, y, pre, dx, dy, kept, d_kept; /* [N, ...] of a micro-batch smaller than the largest one */
};

static void bind(struct fixture *f, enum meg_bind_step step)
{
    f->b.step = step;
    meg_bind_linear(&f->b, &f->l, "fc", &f->shape);
    assert_int_equal(f->b.status, 0);
}

static struct meg_mat mat(int64_t rows, int64_t cols)
{
    return rnd_mat_of(MEG_DTYPE_F32, rows, cols, 2);
}

static void make(struct fixture *f, const struct meg_ops *ops, int tp_dim)
{
    struct meg_mesh mesh;

    *f = (struct fixture){ .c.op = ops, .conf = meg_low_rank(RANK, ALPHA) };
    f->shape = (struct meg_linear_shape){
        .out = OUT, .in = IN, .tp_dim = tp_dim, .nparts = 1, .std = 1, .has_bias = true, .variant = &f->conf.variant
    };
    f->b = (struct meg_binder){ .params = &f->params, .init = meg_init_normal, .op = ops, .n = LARGEST };
    bind(f, MEG_BIND_ROWS);
    meg_mesh_init_dry(&mesh, &meg_layout_one, 0);
    meg_params_shard(&f->params, &mesh);
    bind(f, MEG_BIND_PLANS);
    f->b.w = f->w = rnd_new(f->params.flat_numel);
    f->b.g = f->g = rnd_new(f->params.flat_numel);
    bind(f, MEG_BIND_POINTERS);
    f->x = mat(N, IN);
    f->y = mat(N, OUT);
    f->pre = mat(N, OUT);
    f->dx = mat(N, IN);
    f->dy = mat(N, OUT);
    f->kept = mat(LARGEST, RANK);
    f->d_kept = mat(LARGEST, RANK);
}

static void release(struct fixture *f)
{
    bind(f, MEG_BIND_DESTROY);
    meg_params_free(&f->params);
    for (size_t i = 0; i < 7; i++)
        free((struct meg_mat[]){ f->x, f->y, f->pre, f->dx, f->dy, f->kept, f->d_kept }[i].p);
    free(f->w);
    free(f->g);
}

/* Return element i of a parameter, or of its gradient if `of` is f->g. */
static double param(const struct fixture *f, const float *of, const char *name, int64_t i)
{
    return of[meg_params_find(&f->params, name)->offset + i];
}

/* Return an element of w + scale b a, the matrix of a dense layer with the same output. */
static double merged(const struct fixture *f, int64_t o, int64_t i)
{
    double sum = 0;

    for (int64_t k = 0; k < RANK; k++)
        sum += param(f, f->w, "fc.adapter.linear_out.weight", o * RANK + k) *
               param(f, f->w, "fc.adapter.linear_in.weight", k * IN + i);
    return param(f, f->w, "fc.weight", o * IN + i) + ALPHA / RANK * sum;
}

static double dense_output(const struct fixture *f, int64_t n, int64_t o)
{
    double sum = f->shape.tp_dim == 1 ? 0 : param(f, f->w, "fc.bias", o);

    for (int64_t i = 0; i < IN; i++)
        sum += at(f->x, n, i) * merged(f, o, i);
    return sum;
}

static void forward_of(const struct meg_ops *ops, int tp_dim, bool has_act, bool has_pre)
{
    struct fixture f;

    make(&f, ops, tp_dim);
    MEG_LINEAR(&f.c, &f.l, local_fwd, .y = f.y, .x = f.x, .pre = has_pre ? f.pre : meg_no_mat(),
               .act = has_act ? MEG_ACT_RELU : MEG_ACT_NONE, .kept = f.kept);
    for (int64_t n = 0; n < N; n++)
        for (int64_t o = 0; o < OUT; o++) {
            const double want = dense_output(&f, n, o);

            near_of(MEG_DTYPE_F32, at(f.y, n, o), has_act && want < 0 ? 0 : want, 1e-5, "y", n, o);
            if (has_act && has_pre)
                near_of(MEG_DTYPE_F32, at(f.pre, n, o), want, 1e-5, "pre", n, o);
        }
    release(&f);
}

static void forward(const struct meg_ops *ops)
{
    for (int i = 0; i < 12; i++)
        forward_of(ops, i / 4 - 1, i % 2, i / 2 % 2);
}

/* Return sum of dy[n,o] * x[n,i] over n, the gradient of the matrix of a dense layer. */
static double dense_grad(const struct fixture *f, int64_t o, int64_t i)
{
    double sum = 0;

    for (int64_t n = 0; n < N; n++)
        sum += (double)at(f->dy, n, o) * at(f->x, n, i);
    return sum;
}

static void expect_factor_grads(const struct fixture *f, const float *before)
{
    for (int64_t k = 0; k < RANK; k++) {
        for (int64_t i = 0; i < IN; i++) {
            double want = before ? param(f, before, "fc.adapter.linear_in.weight", k * IN + i) : 0;

            for (int64_t o = 0; o < OUT; o++)
                want +=
                    ALPHA / RANK * dense_grad(f, o, i) * param(f, f->w, "fc.adapter.linear_out.weight", o * RANK + k);
            near_of(MEG_DTYPE_F32, (float)param(f, f->g, "fc.adapter.linear_in.weight", k * IN + i), want, 1e-4,
                    "gradient of linear_in", k, i);
        }
        for (int64_t o = 0; o < OUT; o++) {
            double want = before ? param(f, before, "fc.adapter.linear_out.weight", o * RANK + k) : 0;

            for (int64_t i = 0; i < IN; i++)
                want += ALPHA / RANK * dense_grad(f, o, i) * param(f, f->w, "fc.adapter.linear_in.weight", k * IN + i);
            near_of(MEG_DTYPE_F32, (float)param(f, f->g, "fc.adapter.linear_out.weight", o * RANK + k), want, 1e-4,
                    "gradient of linear_out", o, k);
        }
    }
}

/* The gradients of x, where x = relu(pre), and of the factors; bwd_weight may be deferred. */
static void backward_of(const struct meg_ops *ops, bool defers_wgrad, bool accumulates)
{
    struct fixture f;
    struct meg_mat pre = mat(N, IN);
    float *before;

    make(&f, ops, -1);
    before = malloc((size_t)f.params.flat_numel * sizeof *before);
    memcpy(before, f.g, (size_t)f.params.flat_numel * sizeof *before);
    f.c.defers_wgrad = defers_wgrad;
    f.c.call.accumulates_grads = accumulates;
    MEG_LINEAR(&f.c, &f.l, fwd, .y = f.y, .x = f.x, .kept = f.kept);
    MEG_LINEAR(&f.c, &f.l, bwd, .dx = f.dx, .dy = f.dy, .x = f.x, .pre = pre, .act = MEG_ACT_RELU, .kept = f.kept,
               .d_kept = f.d_kept);
    if (defers_wgrad)
        MEG_LINEAR(&f.c, &f.l, bwd_weight, .dy = f.dy, .x = f.x, .kept = f.kept, .d_kept = f.d_kept);
    for (int64_t n = 0; n < N; n++)
        for (int64_t i = 0; i < IN; i++) {
            double want = 0;

            for (int64_t o = 0; o < OUT && at(pre, n, i) > 0; o++)
                want += at(f.dy, n, o) * merged(&f, o, i);
            near_of(MEG_DTYPE_F32, at(f.dx, n, i), want, 1e-5, "dx", n, i);
        }
    expect_factor_grads(&f, accumulates ? before : NULL);
    free(before);
    free(pre.p);
    release(&f);
}

static void backward(const struct meg_ops *ops)
{
    for (int i = 0; i < 4; i++)
        backward_of(ops, i % 2, i / 2);
}

/* Only the factors are trained, and their product is initially 0. */
static void parameters(const struct meg_ops *ops)
{
    float value = 1;

    for (int tp_dim = -1; tp_dim < 2; tp_dim++) {
        struct fixture f;

        make(&f, ops, tp_dim);
        assert_int_equal(f.params.n, 4);
        for (int i = 0; i < 4; i++)
            assert_int_equal(f.params.row[i].is_frozen, i < 2);
        assert_int_equal(f.params.row[2].grad_is_partial_over_tp, tp_dim == 0);
        assert_int_equal(f.params.row[3].grad_is_partial_over_tp, tp_dim == 1);
        meg_param_init(&f.params.row[3], 1, OUT * RANK - 1, 1, &value);
        assert_true(value == 0);
        release(&f);
    }
}

int main(void)
{
    static const struct ops_case cases[] = {
        { "the output is that of a dense layer with w + scale b a", forward },
        { "gradients agree with f64", backward },
        { "only the factors are trained, from the weights of the dense layer", parameters },
    };

    return run_cases(cases, LEN(cases));
}
