/* linear.c - cases of linear_fwd, linear_bwd_data and linear_bwd_weight. */
#include "ops.h"

/* Rows, inputs and outputs of a layer; pad is the padding of rows, of which some matrices have twice as much. */
struct shape {
    int64_t n, i, o, pad;
};
/* Shapes for all types.  The last ones have several blocks in some dimension. */
static const struct shape cpu_shapes[] = {
    { 1, 1, 1, 3 },     { 3, 5, 7, 3 },  { 17, 33, 65, 3 }, { 1, 96, 515, 3 },
    { 16, 70, 129, 3 }, { 6, 64, 3, 3 }, { 600, 9, 3, 3 },  { 260, 12, 390, 3 }
};
/* Some have aligned rows. */
static const struct shape shapes[] = { { 32, 48, 40, 0 }, { 1, 64, 24, 0 }, { 21, 16, 32, 8 }, { 7, 17, 19, 0 },
                                       { 9, 24, 2, 3 },   { 5, 1, 11, 0 },  { 3, 8, 1034, 6 } };
static const struct shape many_blocks = { 270, 400, 530, 3 };
static const struct shape bench_shapes[] = {
    { 8192, 8192, 8192, 0 }, { 65536, 768, 3072, 0 },  { 65536, 768, 2304, 0 },
    { 65536, 3072, 768, 0 }, { 16384, 1600, 6400, 0 }, { 8192, 4096, 28672, 0 }
};

struct types {
    enum meg_dtype x, w, y, grad;
};
/* Types that cuBLASLt supports. */
static const struct types types[] = {
    { MEG_DTYPE_F32, MEG_DTYPE_F32, MEG_DTYPE_F32, MEG_DTYPE_F32 },
    { MEG_DTYPE_BF16, MEG_DTYPE_BF16, MEG_DTYPE_BF16, MEG_DTYPE_F32 },
    { MEG_DTYPE_BF16, MEG_DTYPE_BF16, MEG_DTYPE_F32, MEG_DTYPE_BF16 },
    { MEG_DTYPE_F16, MEG_DTYPE_F16, MEG_DTYPE_F16, MEG_DTYPE_F16 },
    { MEG_DTYPE_F16, MEG_DTYPE_F16, MEG_DTYPE_F32, MEG_DTYPE_F32 },
};
enum { TYPES = LEN(types), SHAPES = LEN(shapes) };

/* LARGER_PLAN: the plan is for a larger layer.  The others: an element of x or dy is not finite. */
enum { PLAIN, LARGER_PLAN, WITH_NAN, WITH_INF, WITH_NEGATIVE_INF, VARIANTS };

/*
 * Set *t to combination k of types: all 27 of x, w and y for small shapes, the three of equal types for others.  Return
 * false at the end.
 */
static bool next_types(struct types *t, const struct shape *s, int k)
{
    const int i = k * (s->n * s->i * s->o < 20000 ? 1 : 13);

    *t = (struct types){ (enum meg_dtype)(i % 3), (enum meg_dtype)(i / 3 % 3), (enum meg_dtype)(i / 9),
                         (enum meg_dtype)(i * 2 % 3) };
    return i < 27;
}

static struct types same_types(int t)
{
    const enum meg_dtype same = (enum meg_dtype)t;

    return (struct types){ same, same, same, same };
}

/* Return the type of the first tensor that a call has. */
static enum meg_dtype type_of(struct op_call *c, const char *name, const char *other, enum meg_dtype if_none)
{
    const struct op_tensor *t = op_find(c, name) ? op_find(c, name) : op_find(c, other);

    return t ? t->dtype : if_none;
}

static struct meg_linear_desc plan(struct op_call *c)
{
    const int more = c->variant == LARGER_PLAN;
    const enum meg_dtype x = type_of(c, "x", "dx", MEG_DTYPES);

    return (struct meg_linear_desc){ .n = op_size(c, "n") + more,
                                     .in = op_size(c, "i") + more,
                                     .out = op_size(c, "o") + more,
                                     .x = x,
                                     .w = type_of(c, "w", "w", x),
                                     .y = type_of(c, "y", "dy", MEG_DTYPES),
                                     .dw = type_of(c, "dw", "dw", MEG_DTYPE_F32) };
}

/*
 * A sum of k products is rounded k times with errors of either sign: allow 3 + 2 sqrt(k) half ulps of `size`, the sum
 * of their magnitudes.  A sum that is not finite must not be finite.
 */
static double dot_tol(int64_t k, double size)
{
    return isfinite(size) ? (3 + 2 * sqrt((double)k)) * EPS * size : 0;
}

/* Set an element to the special value of the variant. */
static void set_special(struct op_call *c, const char *name, int64_t element)
{
    static const double special[VARIANTS] = {
        [WITH_NAN] = NAN, [WITH_INF] = INFINITY, [WITH_NEGATIVE_INF] = -INFINITY
    };

    if (c->variant >= WITH_NAN)
        op_in(c, name)[element] = special[c->variant];
}

/*
 * Tolerance for a result of the CUDA backend.  An activation may be computed from a rounded value, whose relative error
 * a square doubles, and cuBLASLt's GELU has an approximate tanh.
 */
static double cuda_tolerance(enum meg_dtype t, enum meg_act act)
{
    return op_tolerance(t) * (act == MEG_ACT_NONE || t == MEG_DTYPE_F32 ? 1 : act == MEG_ACT_SQUARED_RELU ? 3 : 2);
}

/* ---- linear_fwd ---- */

static void fwd_fill(struct op_call *c)
{
    set_special(c, "x", 5 * op_size(c, "i") + 3);
}

static void fwd_ref(struct op_call *c)
{
    const struct meg_linear_fwd_args *a = c->args;
    const int64_t n = op_size(c, "n"), in = op_size(c, "i"), out = op_size(c, "o");
    const double *x = op_in(c, "x"), *w = op_in(c, "w"), *bias = op_in(c, "bias");
    struct op_tensor *const y = op_find(c, "y"), *pre = a->act == MEG_ACT_NONE ? NULL : op_find(c, "pre");
    const double *old = a->accumulate ? (pre ? pre : y)->v : NULL;

    for (int64_t k = 0; k < n * out; k++) {
        const double *xr = x + k / out * in, *wr = w + k % out * in;
        double sum = bias ? bias[k % out] : 0, size = fabs(sum), tol;

        for (int64_t i = 0; i < in; i++) {
            sum += xr[i] * wr[i];
            size += fabs(xr[i] * wr[i]);
        }
        sum += old ? old[k] : 0;
        tol = dot_tol(in, size + (old ? fabs(old[k]) : 0));
        if (pre) {
            pre->want[k] = sum;
            pre->tol[k] = tol;
        }
        /* |gelu'| <= 1.13; the activation itself is within 8 half ulps of x, or of its value */
        y->want[k] = isfinite(sum) ? op_act(a->act, sum) : NAN;
        y->tol[k] = isfinite(sum) ? fmax(1.2, 1.1 * fabs(op_slope(a->act, sum))) * tol +
                                        8 * EPS * fmax(fabs(sum), fabs(y->want[k]))
                                  : 0;
    }
}

static double fwd_cuda(const struct op_call *c, const struct op_tensor *t)
{
    const struct meg_linear_fwd_args *a = c->args;

    return cuda_tolerance(t->dtype, strcmp(t->name, "pre") ? a->act : MEG_ACT_NONE);
}

struct fwd_options {
    bool has_bias, has_pre, accumulate;
    enum meg_act act;
};

static void fwd_one(int variant, struct types t, struct shape s, struct fwd_options o)
{
    OP_CASE(linear_fwd, variant, .y = op_mat(t.y, s.n, s.o, s.pad),
            .pre = o.has_pre ? op_mat(t.y, s.n, s.o, 2 * s.pad) : meg_no_mat(), .x = op_mat(t.x, s.n, s.i, s.pad),
            .w = op_mat(t.w, s.o, s.i, 2 * s.pad), .bias = o.has_bias ? ON : NULL, .act = o.act,
            .accumulate = o.accumulate);
}

static void fwd_types(void)
{
    struct types t;

    for (size_t i = 0; i < LEN(cpu_shapes); i++)
        for (int act = MEG_ACT_NONE; act < MEG_ACTS; act++)
            for (int opt = 0; opt < 4; opt++)
                for (int k = 0; next_types(&t, &cpu_shapes[i], k); k++)
                    fwd_one(PLAIN, t, cpu_shapes[i],
                            (struct fwd_options){ opt & 1, opt & 2, (act + opt + k) % 2, (enum meg_act)act });
}

static void fwd_shapes(void)
{
    for (int i = 0; i < TYPES; i++)
        for (int k = 0; k < SHAPES; k++)
            for (int accumulate = 0; accumulate < 2; accumulate++)
                fwd_one(PLAIN, types[i], shapes[k], (struct fwd_options){ k % 2, false, accumulate, MEG_ACT_NONE });
}

static void fwd_acts(void)
{
    for (int i = 0; i < TYPES; i++)
        for (int k = 0; k < 4; k++)
            for (int act = MEG_ACT_GELU_TANH; act < MEG_ACTS; act++)
                fwd_one(
                    PLAIN, types[i], shapes[k],
                    (struct fwd_options){ (i + k + act) % 2, (i + k) % 3 > 0, (k + act) / 2 % 2, (enum meg_act)act });
}

/* All combinations of bias, GELU, pre and accumulate are epilogues of aligned bf16 products. */
static void fwd_epilogues(void)
{
    for (int i = 0; i < 48; i++)
        fwd_one(PLAIN, types[1], (struct shape){ 8, 16 + 8 * (i % 3), 16, 0 },
                (struct fwd_options){ i / 2 % 2, i / 8 % 2, i / 24, i / 4 % 2 ? MEG_ACT_GELU_TANH : MEG_ACT_NONE });
}

static void fwd_unaligned(void)
{
    for (int i = 0; i < TYPES; i++) {
        void *const p = OFFSET(meg_dtype_size(types[i].x)), *const py = OFFSET(meg_dtype_size(types[i].y));
        struct meg_mat x = op_mat(types[i].x, 13, 32, 8), w = op_mat(types[i].w, 24, 32, 8);
        struct meg_mat y = op_mat(types[i].y, 13, 24, 8);

        x.p = w.p = p;
        y.p = py;
        OP_CASE(linear_fwd, LARGER_PLAN, .y = y, .pre = y, .x = x, .w = w, .bias = p, .act = MEG_ACT_GELU_TANH);
    }
}

/* x, w or bias begins at an address that is a multiple of 2 or 8, but not of 16. */
static void fwd_one_unaligned(void)
{
    const struct types t = types[1];

    for (int i = 0; i < 6; i++) {
        void *const p = OFFSET(i % 2 ? 2 : 8);
        struct meg_mat x = op_mat(t.x, 8, 32, 8), w = op_mat(t.w, 24, 32, 8);

        x.p = i / 2 == 0 ? p : ON;
        w.p = i / 2 == 1 ? p : ON;
        OP_CASE(linear_fwd, PLAIN, .y = op_mat(t.y, 8, 24, 0), .x = x, .w = w, .bias = i / 2 == 2 ? p : ON);
    }
}

/*
 * The first call creates a plan of cuBLASLt, which the later calls use.  m, n and k all exceed a tile of the test
 * double of cuBLASLt.
 */
static void fwd_repeated(void)
{
    for (int i = 0; i < 3; i++)
        fwd_one(PLAIN, types[1], (struct shape){ 130, 160, 72, 0 }, (struct fwd_options){ 0 });
}

static void fwd_not_finite(void)
{
    for (int t = 0; t < OP_FLOATS; t++)
        for (int act = MEG_ACT_NONE; act <= MEG_ACT_GELU_ERF; act++)
            for (int variant = WITH_NAN; variant < VARIANTS; variant++)
                fwd_one(variant, same_types(t), (struct shape){ 40, 24, 50, 3 },
                        (struct fwd_options){ .has_bias = true, .act = (enum meg_act)act });
}

static void fwd_bench(void)
{
    for (size_t i = 0; i < LEN(bench_shapes); i++) {
        fwd_one(PLAIN, types[1], bench_shapes[i], (struct fwd_options){ 0 });
        fwd_one(PLAIN, types[1], bench_shapes[i], (struct fwd_options){ true, true, false, MEG_ACT_GELU_TANH });
    }
}

OP_TEST(linear_fwd, .fill = fwd_fill, .ref = fwd_ref, .added = "y pre", .ref_adds = true, .plan = plan,
        .cuda = fwd_cuda, .bench = fwd_bench,
        .group = { { "all types, activation functions and options", fwd_types, .is_cpu_only = true },
                   { "types and shapes", fwd_shapes },
                   { "activation functions", fwd_acts },
                   { "epilogues", fwd_epilogues },
                   { "unaligned and smaller than the plan", fwd_unaligned },
                   { "one operand is not aligned", fwd_one_unaligned, .is_untimed = true },
                   { "repeated products", fwd_repeated },
                   { "NaN and infinity", fwd_not_finite, .is_cpu_only = true } });

/* ---- linear_bwd_data ---- */

static void bwd_data_fill(struct op_call *c)
{
    set_special(c, "dy", 7 * op_size(c, "o") + 2);
}

static void bwd_data_ref(struct op_call *c)
{
    const struct meg_linear_bwd_data_args *a = c->args;
    const int64_t n = op_size(c, "n"), in = op_size(c, "i"), out = op_size(c, "o");
    const double *dy = op_in(c, "dy"), *w = op_in(c, "w"), *pre = op_in(c, "pre");
    struct op_tensor *const dx = op_find(c, "dx");

    for (int64_t k = 0; k < n * in; k++) {
        double sum = a->accumulate ? dx->v[k] : 0, size = fabs(sum);

        for (int64_t o = 0; o < out; o++) {
            sum += dy[k / in * out + o] * w[o * in + k % in];
            size += fabs(dy[k / in * out + o] * w[o * in + k % in]);
        }
        dx->want[k] = !isfinite(sum) ? NAN : a->act == MEG_ACT_NONE ? sum : sum * op_slope(a->act, pre[k]);
        dx->tol[k] = dot_tol(out, a->act == MEG_ACT_NONE ? fmin(size, (double)out / 4) : (double)out);
        if (a->act != MEG_ACT_NONE)
            dx->tol[k] += 1e-7;
    }
}

/* The sum of two 16-bit products is rounded twice (cuda/cublas/linear.c). */
static double bwd_data_cuda(const struct op_call *c, const struct op_tensor *t)
{
    const struct meg_linear_bwd_data_args *a = c->args;
    const bool are_two = a->act == MEG_ACT_NONE && op_size(c, "o") > 1024 && t->dtype != MEG_DTYPE_F32;

    return cuda_tolerance(t->dtype, a->act) * (are_two ? 2 : 1);
}

static void bwd_data_one(int variant, struct types t, struct shape s, enum meg_act act, enum meg_dtype pre,
                         bool accumulate)
{
    OP_CASE(linear_bwd_data, variant, .dx = op_mat(t.x, s.n, s.i, s.pad), .dy = op_mat(t.y, s.n, s.o, 2 * s.pad),
            .w = op_mat(t.w, s.o, s.i, 2 * s.pad), .pre = op_mat(pre, s.n, s.i, 2 * s.pad), .act = act,
            .accumulate = accumulate);
}

static void bwd_data_types(void)
{
    struct types t;

    for (size_t i = 0; i < LEN(cpu_shapes); i++)
        for (int act = MEG_ACT_NONE; act < MEG_ACTS; act++)
            for (int k = 0; next_types(&t, &cpu_shapes[i], k); k++)
                for (int accumulate = 0; accumulate < 2; accumulate++)
                    bwd_data_one(PLAIN, t, cpu_shapes[i], (enum meg_act)act, t.x, accumulate);
}

static void bwd_data_many_blocks(void)
{
    for (int i = 0; i < OP_MIXES; i++)
        for (int accumulate = 0; accumulate < 2; accumulate++)
            OP_CASE(linear_bwd_data, PLAIN, .dx = op_mat(op_mixes[i].branch, many_blocks.n, many_blocks.i, 1),
                    .dy = op_mat(op_mixes[i].stream, many_blocks.n, many_blocks.o, 2),
                    .w = op_mat(op_mixes[i].branch, many_blocks.o, many_blocks.i, 1), .accumulate = accumulate);
}

/* Return whether cuBLASLt multiplies dy and w of these types. */
static bool are_equal(struct types t)
{
    return t.w == t.y;
}

static void bwd_data_shapes(void)
{
    for (int i = 0; i < TYPES; i++)
        for (int k = 0; k < SHAPES && are_equal(types[i]); k++)
            for (int act = k % 2; act < MEG_ACTS; act += 2 - i % 2)
                bwd_data_one(PLAIN, types[i], shapes[k], (enum meg_act)act, types[i].x,
                             (shapes[k].n + shapes[k].i / 8 + act) % 2);
}

/* pre, the input of the activation function, may have another type than dx. */
static void bwd_data_f32_pre(void)
{
    for (int i = 0; i < TYPES; i++)
        for (int64_t n = 8; n < 24 && are_equal(types[i]); n += 8)
            bwd_data_one(PLAIN, types[i], (struct shape){ n, 56, 48, 0 }, MEG_ACT_GELU_TANH, MEG_DTYPE_F32, n == 8);
}

static void bwd_data_not_finite(void)
{
    for (int t = 0; t < OP_FLOATS; t++)
        for (int variant = WITH_NAN; variant < VARIANTS; variant++)
            bwd_data_one(variant, same_types(t), (struct shape){ 40, 24, 50, 3 }, MEG_ACT_NONE, t, false);
}

static void bwd_data_bench(void)
{
    for (size_t i = 0; i < LEN(bench_shapes); i++)
        OP_CASE(linear_bwd_data, PLAIN, .dx = op_mat(MEG_DTYPE_BF16, bench_shapes[i].n, bench_shapes[i].i, 0),
                .dy = op_mat(MEG_DTYPE_BF16, bench_shapes[i].n, bench_shapes[i].o, 0),
                .w = op_mat(MEG_DTYPE_BF16, bench_shapes[i].o, bench_shapes[i].i, 0));
}

OP_TEST(linear_bwd_data, .fill = bwd_data_fill, .ref = bwd_data_ref, .added = "dx", .ref_adds = true, .plan = plan,
        .cuda = bwd_data_cuda, .bench = bwd_data_bench,
        .group = { { "all types and activation functions", bwd_data_types, .is_cpu_only = true },
                   { "many blocks", bwd_data_many_blocks, .is_cpu_only = true },
                   { "types, shapes and activation functions", bwd_data_shapes },
                   { "f32 pre-activations", bwd_data_f32_pre },
                   { "NaN and infinity", bwd_data_not_finite, .is_cpu_only = true } });

/* ---- linear_bwd_weight ---- */

static void bwd_weight_ref(struct op_call *c)
{
    const int64_t n = op_size(c, "n"), in = op_size(c, "i"), out = op_size(c, "o");
    const double *dy = op_in(c, "dy"), *x = op_in(c, "x");
    struct op_tensor *const dw = op_find(c, "dw"), *db = op_find(c, "dbias");

    for (int64_t k = 0; k < out * in; k++) {
        double size = 0;

        dw->want[k] = 0;
        for (int64_t r = 0; r < n; r++) {
            dw->want[k] += dy[r * out + k / in] * x[r * in + k % in];
            size += fabs(dy[r * out + k / in] * x[r * in + k % in]);
        }
        dw->tol[k] = dot_tol(n, fmin(size, (double)n / 4));
    }
    for (int64_t o = 0; db && o < out; o++) {
        db->want[o] = 0;
        for (int64_t r = 0; r < n; r++)
            db->want[o] += dy[r * out + o];
        db->tol[o] = dot_tol(n, (double)n / 2);
    }
}

static void bwd_weight_one(struct types t, struct shape s, bool has_dbias, bool accumulate)
{
    OP_CASE(linear_bwd_weight, PLAIN, .dw = op_mat(t.grad, s.o, s.i, s.pad), .dbias = has_dbias ? ON : NULL,
            .dy = op_mat(t.y, s.n, s.o, 2 * s.pad), .x = op_mat(t.x, s.n, s.i, s.pad), .accumulate = accumulate);
}

static void bwd_weight_types(void)
{
    struct types t;

    for (size_t i = 0; i < LEN(cpu_shapes); i++)
        for (int k = 0; next_types(&t, &cpu_shapes[i], k); k++)
            for (int grad = 0; grad < OP_FLOATS; grad++) {
                t.grad = (enum meg_dtype)grad;
                bwd_weight_one(t, cpu_shapes[i], k % 2, false);
            }
}

static void bwd_weight_many_blocks(void)
{
    for (int i = 0; i < OP_MIXES; i++)
        for (int accumulate = 0; accumulate < 2; accumulate++) {
            const struct op_mix m = op_mixes[i];

            bwd_weight_one((struct types){ m.branch, m.branch, m.stream, m.branch }, many_blocks, true, accumulate);
            if (m.stream != m.branch)
                bwd_weight_one((struct types){ m.branch, m.branch, m.branch, MEG_DTYPE_F32 }, many_blocks, true,
                               accumulate);
        }
}

/* dy has the type of x, as cuBLASLt requires. */
static void bwd_weight_equal_types(struct types t, struct shape s, bool has_dbias, bool accumulate)
{
    t.y = t.x;
    bwd_weight_one(t, s, has_dbias, accumulate);
}

static void bwd_weight_shapes(void)
{
    for (int i = 0; i < TYPES; i++)
        for (int k = 0; k < SHAPES; k++)
            for (int j = (i + k) % 2; j < 4; j += 2)
                bwd_weight_equal_types(types[i], shapes[k], j % 2 ^ j / 2, j / 2);
}

/* The first micro-batch of a step sets gradients, and the next ones are added: these products differ in their plans. */
static void bwd_weight_accumulated(void)
{
    for (int64_t in = 16; in < 48; in += 8)
        for (int accumulate = 0; accumulate < 2; accumulate++)
            bwd_weight_equal_types(types[2], (struct shape){ 16, in, 24, 0 }, true, accumulate);
}

/* Without tokens, gradients are zero, or unchanged if they are accumulated. */
static void bwd_weight_empty(void)
{
    for (int i = 0; i < TYPES; i++)
        for (int accumulate = 0; accumulate < 2; accumulate++)
            bwd_weight_equal_types(types[i], (struct shape){ 0, 24, 16, 8 }, true, accumulate);
}

/* Timing a product must not change the gradients to which it adds. */
static void bwd_weight_repeated(void)
{
    for (int i = 0; i < 2; i++)
        bwd_weight_one(types[1], (struct shape){ 130, 160, 72, 0 }, false, true);
}

static void bwd_weight_bench(void)
{
    for (size_t i = 0; i < LEN(bench_shapes); i++)
        bwd_weight_one(types[1], bench_shapes[i], true, true);
}

OP_TEST(linear_bwd_weight, .ref = bwd_weight_ref, .grad_of = &op_test_linear_fwd, .added = "dw dbias", .plan = plan,
        .bench = bwd_weight_bench,
        .group = { { "all types", bwd_weight_types, .is_cpu_only = true },
                   { "many blocks", bwd_weight_many_blocks, .is_cpu_only = true },
                   { "types and shapes", bwd_weight_shapes },
                   { "set, then accumulated", bwd_weight_accumulated, .is_untimed = true },
                   { "no tokens", bwd_weight_empty },
                   { "repeated products", bwd_weight_repeated } });
