/* elementwise.c - cases of act_bwd, scale, softcap, clamp, clamp_bwd and cast. */
#include <stdlib.h>
#include "ops.h"

struct shape {
    int64_t n, f, pad;
};
/*
 * The first shape has rows at multiples of 16 bytes and only complete vectors, the next two an incomplete last vector,
 * the fourth rows at addresses that are not multiples of 16.  The others have more columns than a block and more rows
 * than a grid.
 */
static const struct shape shapes[] = { { 3, 64, 8 }, { 2, 12, 4 },   { 3, 20, 12 },
                                       { 5, 13, 2 }, { 2, 2056, 0 }, { 4099, 3, 0 } };
enum { SMALL_SHAPES = 4 };

/* ---- act_bwd ---- */

/* PLAIN: inputs below 1.  WIDE: pre below 6.  SPECIAL: elements of row 1 of pre such as infinity. */
enum { PLAIN, WIDE, SPECIAL };

double op_act(enum meg_act act, double x)
{
    switch (act) {
    case MEG_ACT_GELU_TANH: return x / (1 + exp(-sqrt(8 / M_PI) * (x + 0.044715 * x * x * x)));
    case MEG_ACT_GELU_ERF: return 0.5 * x * erfc(-x / sqrt(2));
    case MEG_ACT_TANH: return tanh(x);
    case MEG_ACT_RELU: return x < 0 ? 0 : x;
    case MEG_ACT_SILU: return x / (1 + exp(-x));
    case MEG_ACT_QUICK_GELU: return x / (1 + exp(-1.702 * x));
    case MEG_ACT_SQUARED_RELU: return x < 0 ? 0 : x * x;
    default: return x;
    }
}

double op_slope(enum meg_act act, double x)
{
    const double s = 1 / (1 + exp(act == MEG_ACT_SILU ? -x : -1.702 * x)), k = sqrt(2 / M_PI);
    const double t = tanh(k * (x + 0.044715 * x * x * x));

    switch (act) {
    case MEG_ACT_GELU_TANH: return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * k * (1 + 3 * 0.044715 * x * x);
    case MEG_ACT_GELU_ERF: return 0.5 * erfc(-x / sqrt(2)) + x * exp(-0.5 * x * x) / sqrt(2 * M_PI);
    case MEG_ACT_TANH: return 1 - tanh(x) * tanh(x);
    case MEG_ACT_RELU: return x <= 0 ? 0 : 1;
    case MEG_ACT_SILU: return s * (1 + x * (1 - s));
    case MEG_ACT_QUICK_GELU: return s * (1 + 1.702 * x * (1 - s));
    case MEG_ACT_SQUARED_RELU: return x < 0 ? 0 : 2 * x;
    default: return 1;
    }
}

bool op_is_relu(enum meg_act act)
{
    return act == MEG_ACT_RELU || act == MEG_ACT_SQUARED_RELU;
}

static void act_fill(struct op_call *c)
{
    struct op_tensor *pre = op_find(c, "pre");

    for (int64_t i = 0; pre->v && c->variant != PLAIN && i < pre->numel; i++)
        pre->v[i] *= 6;
    if (c->variant == SPECIAL)
        op_set_special(c, "pre", pre->size[1]);
}

static void act_ref(struct op_call *c)
{
    const struct meg_act_bwd_args *a = c->args;
    const double *dy = op_in(c, "dy"), *pre = op_in(c, "pre");
    struct op_tensor *dx = op_find(c, "dx");

    for (int64_t i = 0; i < dx->numel; i++) {
        dx->want[i] = dy[i] * op_slope(a->act, pre[i]);
        dx->tol[i] =
            isinf(pre[i]) || (op_is_relu(a->act) && isnan(pre[i])) ? INFINITY : 1e-6 * fmax(1, fabs(pre[i]) / 3);
    }
}

static void act_one(int variant, enum meg_act act, enum meg_dtype tdx, enum meg_dtype tdy, enum meg_dtype tp,
                    struct shape s, bool has_space)
{
    OP_CASE(act_bwd, variant, .dx = op_mat(tdx, s.n, s.f, has_space ? s.pad + 8 : s.pad),
            .dy = op_mat(tdy, s.n, s.f, s.pad), .pre = op_mat(tp, s.n, s.f, s.pad), .act = act);
}

static void act_types(void)
{
    for (int act = MEG_ACT_GELU_TANH; act < MEG_ACTS; act++)
        for (int i = 0; i < OP_FLOATS * OP_FLOATS * OP_FLOATS; i++)
            for (int s = 0; s < SMALL_SHAPES; s++)
                act_one(WIDE, (enum meg_act)act, (enum meg_dtype)(i / 9), (enum meg_dtype)(i / 3 % 3),
                        (enum meg_dtype)(i % 3), shapes[s], true);
}

static void act_shapes(void)
{
    for (int i = 0; i < OP_FLOATS; i++)
        act_one(WIDE, MEG_ACT_GELU_ERF, (enum meg_dtype)i, (enum meg_dtype)i, MEG_DTYPE_F32, shapes[0], false);
    for (size_t i = SMALL_SHAPES; i < LEN(shapes); i++) {
        act_one(WIDE, MEG_ACT_GELU_TANH, MEG_DTYPE_BF16, MEG_DTYPE_BF16, MEG_DTYPE_BF16, shapes[i], true);
        act_one(WIDE, MEG_ACT_GELU_TANH, MEG_DTYPE_BF16, MEG_DTYPE_F16, MEG_DTYPE_F32, shapes[i], true);
    }
    for (int i = 0; i < OP_FLOATS; i++) /* more than a block of columns */
        for (int act = MEG_ACT_GELU_TANH; act < MEG_ACTS; act++)
            act_one(PLAIN, (enum meg_act)act, (enum meg_dtype)i, (enum meg_dtype)i, (enum meg_dtype)i,
                    (struct shape){ 5, 1030, 2 }, false);
}

static void act_special(void)
{
    for (int act = MEG_ACT_GELU_TANH; act < MEG_ACTS; act++)
        act_one(SPECIAL, (enum meg_act)act, MEG_DTYPE_F32, MEG_DTYPE_F32, MEG_DTYPE_F32, shapes[1], true);
}

static void act_bench(void)
{
    act_one(PLAIN, MEG_ACT_GELU_TANH, MEG_DTYPE_BF16, MEG_DTYPE_BF16, MEG_DTYPE_BF16, (struct shape){ 16384, 4096, 0 },
            false);
}

OP_TEST(act_bwd, .fill = act_fill, .ref = act_ref, .bench = act_bench,
        .group = { { "types and activation functions", act_types },
                   { "shapes", act_shapes },
                   { "infinity and NaN", act_special } });

/* ---- scale ---- */

static void scale_fill(struct op_call *c)
{
    struct op_tensor *x = op_find(c, "x");

    for (int64_t i = 0; x->v && i < x->numel; i++)
        x->v[i] *= 3;
}

/* The product is exact in f64, and rounded to f32. */
static void scale_ref(struct op_call *c)
{
    const struct meg_scale_args *a = c->args;
    struct op_tensor *y = op_find(c, "y");

    for (int64_t i = 0; i < y->numel; i++)
        y->want[i] = op_rounded(MEG_DTYPE_F32, op_in(c, "x")[i] * (double)a->factor);
}

static void scale_one(enum meg_dtype ty, enum meg_dtype tx, struct shape s, bool has_space)
{
    OP_CASE(scale, 0, .y = op_mat(ty, s.n, s.f, has_space ? s.pad + 8 : s.pad), .x = op_mat(tx, s.n, s.f, s.pad),
            .factor = 0.3f);
}

static void scale_types(void)
{
    for (int i = 0; i < OP_FLOATS * OP_FLOATS; i++) {
        for (int s = 0; s < SMALL_SHAPES; s++)
            scale_one((enum meg_dtype)(i / 3), (enum meg_dtype)(i % 3), shapes[s], true);
        scale_one((enum meg_dtype)(i / 3), (enum meg_dtype)(i % 3), (struct shape){ 3, 1030, 2 }, false);
    }
}

static void scale_shapes(void)
{
    for (size_t i = 0; i < LEN(shapes); i++)
        scale_one(MEG_DTYPE_BF16, MEG_DTYPE_BF16, shapes[i], false);
}

static void scale_bench(void)
{
    scale_one(MEG_DTYPE_BF16, MEG_DTYPE_BF16, (struct shape){ 16384, 4096, 0 }, false);
}

static double equal_cuda(const struct op_call *c, const struct op_tensor *t)
{
    (void)c, (void)t;
    return 0;
}

OP_TEST(scale, .fill = scale_fill, .ref = scale_ref, .cuda = equal_cuda, .bench = scale_bench,
        .group = { { "types", scale_types }, { "shapes", scale_shapes } });

/* ---- softcap ---- */

static void softcap_ref(struct op_call *c)
{
    const double cap = (double)((const struct meg_softcap_args *)c->args)->cap;
    struct op_tensor *y = op_find(c, "y");

    for (int64_t i = 0; i < y->numel; i++) {
        y->want[i] = cap * tanh(op_in(c, "x")[i] / cap);
        y->tol[i] = 8 * EPS * fabs(y->want[i]);
    }
}

static void softcap_one(enum meg_dtype ty, enum meg_dtype tx, struct shape s, bool has_space, float cap)
{
    OP_CASE(softcap, 0, .y = op_mat(ty, s.n, s.f, has_space ? s.pad + 8 : s.pad), .x = op_mat(tx, s.n, s.f, s.pad),
            .cap = cap);
}

static void softcap_types(void)
{
    for (int i = 0; i < OP_FLOATS * OP_FLOATS; i++)
        for (int s = 0; s < SMALL_SHAPES; s++) {
            softcap_one((enum meg_dtype)(i / 3), (enum meg_dtype)(i % 3), shapes[s], true, 0.7f);
            softcap_one((enum meg_dtype)(i / 3), (enum meg_dtype)(i % 3), shapes[s], false, 30);
        }
}

static void softcap_shapes(void)
{
    for (size_t i = 0; i < LEN(shapes); i++)
        softcap_one(MEG_DTYPE_BF16, MEG_DTYPE_BF16, shapes[i], false, 2);
}

static void softcap_bench(void)
{
    softcap_one(MEG_DTYPE_BF16, MEG_DTYPE_BF16, (struct shape){ 16384, 4096, 0 }, false, 30);
}

static double softcap_cuda(const struct op_call *c, const struct op_tensor *t)
{
    (void)c;
    return t->dtype == MEG_DTYPE_F32 ? 1e-6 : op_tolerance(t->dtype);
}

OP_TEST(softcap, .fill = scale_fill, .ref = softcap_ref, .cuda = softcap_cuda, .bench = softcap_bench,
        .group = { { "types and caps", softcap_types }, { "shapes", softcap_shapes } });

/* ---- clamp, clamp_bwd ---- */

static void clamp_ref(struct op_call *c)
{
    const double limit = (double)((const struct meg_clamp_args *)c->args)->limit;
    struct op_tensor *y = op_find(c, "y");

    for (int64_t i = 0; i < y->numel; i++)
        y->want[i] = fmax(-limit, fmin(limit, op_in(c, "x")[i]));
}

static void clamp_bwd_ref(struct op_call *c)
{
    const double limit = (double)((const struct meg_clamp_bwd_args *)c->args)->limit;
    struct op_tensor *dx = op_find(c, "dx");

    for (int64_t i = 0; i < dx->numel; i++)
        dx->want[i] = fabs(op_in(c, "x")[i]) > limit ? 0 : op_in(c, "dy")[i];
}

static void clamp_types(void)
{
    for (int i = 0; i < OP_FLOATS * OP_FLOATS; i++)
        for (int s = 0; s < SMALL_SHAPES; s++)
            OP_CASE(clamp, 0, .y = op_mat((enum meg_dtype)(i / 3), shapes[s].n, shapes[s].f, shapes[s].pad + 8),
                    .x = op_mat((enum meg_dtype)(i % 3), shapes[s].n, shapes[s].f, shapes[s].pad), .limit = 1.5f);
}

static void clamp_shapes(void)
{
    for (size_t i = 0; i < LEN(shapes); i++)
        OP_CASE(clamp, 0, .y = op_mat(MEG_DTYPE_BF16, shapes[i].n, shapes[i].f, shapes[i].pad),
                .x = op_mat(MEG_DTYPE_BF16, shapes[i].n, shapes[i].f, shapes[i].pad), .limit = 0.5f);
}

static void clamp_bwd_one(enum meg_dtype tdx, enum meg_dtype tdy, enum meg_dtype tx, struct shape s)
{
    OP_CASE(clamp_bwd, 0, .dx = op_mat(tdx, s.n, s.f, s.pad), .dy = op_mat(tdy, s.n, s.f, s.pad),
            .x = op_mat(tx, s.n, s.f, s.pad + 8), .limit = 1.5f);
}

static void clamp_bwd_types(void)
{
    for (int i = 0; i < OP_FLOATS * OP_FLOATS * OP_FLOATS; i++)
        for (int s = 0; s < SMALL_SHAPES; s++)
            clamp_bwd_one((enum meg_dtype)(i / 9), (enum meg_dtype)(i / 3 % 3), (enum meg_dtype)(i % 3), shapes[s]);
}

static void clamp_bwd_shapes(void)
{
    for (size_t i = 0; i < LEN(shapes); i++)
        clamp_bwd_one(MEG_DTYPE_BF16, MEG_DTYPE_BF16, MEG_DTYPE_BF16, shapes[i]);
}

OP_TEST(clamp, .fill = scale_fill, .ref = clamp_ref, .cuda = equal_cuda,
        .group = { { "types", clamp_types }, { "shapes", clamp_shapes } });
OP_TEST(clamp_bwd, .fill = scale_fill, .ref = clamp_bwd_ref, .grad_of = &op_test_clamp, .cuda = equal_cuda,
        .group = { { "types", clamp_bwd_types }, { "shapes", clamp_bwd_shapes } });

/* ---- cast ---- */

/*
 * RANDOM numbers.  ALL: the 2^16 values of bf16 or f16, or f32 numbers with all values of the upper 16 bits and lower
 * bits such that most are between two values of bf16, a third of them at the middle.  BF16_MIDDLES and F16_MIDDLES:
 * f32 numbers in the middle between successive values of a type, or next to it.
 */
enum { RANDOM, ALL, BF16_MIDDLES, F16_MIDDLES };
enum { VALUES = 1 << 16 };

static double value_of(enum meg_dtype t, uint32_t bits)
{
    const struct op_tensor x = { .dtype = t, .ndims = 1, .size = { 1 }, .stride = { 1 }, .numel = 1 };
    const uint16_t half = (uint16_t)bits;
    double *v = op_values(&x, t == MEG_DTYPE_F32 ? (const char *)&bits : (const char *)&half), value = *v;

    free(v);
    return value;
}

static void cast_fill(struct op_call *c)
{
    const enum meg_dtype from = ((const struct meg_cast_args *)c->args)->src_type;
    const enum meg_dtype of = c->variant == BF16_MIDDLES ? MEG_DTYPE_BF16 : MEG_DTYPE_F16;
    double *v = op_in(c, "src");

    for (uint32_t k = 0; c->variant == ALL && k < VALUES; k++)
        v[k] = value_of(from, from == MEG_DTYPE_F32 ? k << 16 | (k % 3 ? k * 40503 % (1 << 16) : 0x8000) : k);
    for (uint32_t k = 0; c->variant > ALL && k < VALUES; k++) {
        const double x = value_of(of, k), next = value_of(of, (k + 1) % VALUES);
        const bool is_most = isfinite(x) && !isfinite(next);
        const float half = (float)(x + (is_most ? x - value_of(of, k - 1) : next - x) / 2);

        for (uint32_t i = 0; i < 3; i++)
            v[3 * k + i] = (double)(i == 0 ? half : nextafterf(half, i == 1 ? -INFINITY : INFINITY));
    }
}

/*
 * Return x rounded to a significand of `bits` bits, ties to even, with exponents of at least `least`; infinite above
 * `most`.
 */
static double rounded(double x, int bits, int least, double most)
{
    const double ulp = x == 0 || isinf(x) ? 1 : ldexp(1, (int)fmax(ilogb(x), least) - bits + 1);
    const double r = nearbyint(x / ulp) * ulp;

    return fabs(r) > most ? copysign(INFINITY, r) : r;
}

static void cast_ref(struct op_call *c)
{
    const double *src = op_in(c, "src");
    struct op_tensor *dst = op_find(c, "dst");

    for (int64_t i = 0; i < dst->numel; i++)
        dst->want[i] = dst->dtype == MEG_DTYPE_F16    ? rounded(src[i], 11, -14, 65504)
                       : dst->dtype == MEG_DTYPE_BF16 ? rounded(src[i], 8, -126, 0x1.fep127)
                                                      : src[i];
}

/* The arrays begin a number of elements after aligned addresses. */
static void cast_one(int variant, enum meg_dtype to, enum meg_dtype from, int64_t n, int64_t dst0, int64_t src0)
{
    OP_CASE(cast, variant, .dst = OFFSET((size_t)dst0 * meg_dtype_size(to)), .dst_type = to,
            .src = OFFSET((size_t)src0 * meg_dtype_size(from)), .src_type = from, .n = n);
}

static void cast_sizes(void)
{
    static const int64_t sizes[] = { 1, 2, 7, 8, 9, 31, 64, 2049, 4096 };

    for (int i = 0; i < OP_FLOATS * OP_FLOATS; i++)
        for (size_t k = 0; k < LEN(sizes); k++)
            for (int64_t offsets = 0; offsets < 4; offsets++)
                cast_one(RANDOM, (enum meg_dtype)(i / 3), (enum meg_dtype)(i % 3), sizes[k] - offsets % 2, offsets / 2,
                         offsets % 2);
}

static void cast_values(void)
{
    for (int i = 0; i < OP_FLOATS * OP_FLOATS; i++)
        cast_one(ALL, (enum meg_dtype)(i / 3), (enum meg_dtype)(i % 3), VALUES, 0, 0);
}

static void cast_middles(void)
{
    cast_one(BF16_MIDDLES, MEG_DTYPE_BF16, MEG_DTYPE_F32, 3 * VALUES, 0, 0);
    cast_one(F16_MIDDLES, MEG_DTYPE_F16, MEG_DTYPE_F32, 3 * VALUES, 0, 0);
}

/* NaN may have any bits. */
static double cast_cuda(const struct op_call *c, const struct op_tensor *t)
{
    (void)c, (void)t;
    return 1e-300;
}

OP_TEST(cast, .fill = cast_fill, .ref = cast_ref, .cuda = cast_cuda,
        .group = { { "sizes and alignment", cast_sizes },
                   { "all values of 16 bits", cast_values },
                   { "ties are rounded to even", cast_middles } });
