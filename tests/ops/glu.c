/* glu.c - cases of glu_fwd and glu_bwd: gated linear units and their gradients. */
#include "ops.h"

/*
 * PLAIN: values in [-6, 6).  SPECIAL: gates of row 1 such as infinity.  AT_LIMIT: values at the limit 7 and beyond it.
 * EXTREME: gates for which an activation function is exactly 0 or linear.
 */
enum { PLAIN, SPECIAL, AT_LIMIT, EXTREME };

static void fill(struct op_call *c)
{
    static const double limits[][2] = { { 7, 1 }, { 7.5, 2 }, { 1, 7 }, { 1, -7.5 }, { -9, 2 } };
    static const double extremes[][2] = { { -200, 2 }, { 200, 2 }, { NAN, 1 }, { 2, NAN } };
    const int64_t f = op_size(c, "f");
    double *x = op_in(c, "x"), *dy = op_in(c, "dy");

    for (int64_t i = 0; x && i < op_size(c, "n") * 2 * f; i++)
        x[i] *= 6;
    if (c->variant == SPECIAL)
        op_set_special(c, "x", 2 * f);
    for (int64_t i = 0; (c->variant == AT_LIMIT || c->variant == EXTREME) && i < f; i++) {
        const double *pair = c->variant == AT_LIMIT ? limits[i] : extremes[i];

        x[i] = pair[0];
        x[f + i] = pair[1];
        if (dy)
            dy[i] = 1;
    }
}

/* The gate and the other factor of element i of y, clamped, and whether a gradient passes through them. */
struct pair {
    double gate, up;
    bool gate_passes, up_passes;
};

static struct pair pair_of(struct op_call *c, const struct meg_glu *unit, int64_t i)
{
    const int64_t f = op_size(c, "f");
    const double *x = op_in(c, "x") + i / f * 2 * f + i % f, limit = (double)unit->limit;
    struct pair p = { x[0], x[f], true, true };

    if (limit > 0 && p.gate > limit) {
        p.gate = limit;
        p.gate_passes = false;
    }
    if (limit > 0 && fabs(p.up) > limit) {
        p.up = copysign(limit, p.up);
        p.up_passes = false;
    }
    p.up += (double)unit->offset;
    return p;
}

/* Return whether the activation function is exactly 0 or linear at this gate. */
static bool has_exact_result(const struct op_call *c, const struct meg_glu *unit, double gate)
{
    return c->variant == EXTREME && unit->act == MEG_ACT_SILU && fabs(gate) == 200;
}

static void fwd_ref(struct op_call *c)
{
    const struct meg_glu *unit = ((const struct meg_glu_fwd_args *)c->args)->unit;
    struct op_tensor *y = op_find(c, "y");

    for (int64_t i = 0; i < y->numel; i++) {
        const struct pair p = pair_of(c, unit, i);
        const double want = op_act(unit->act, p.gate) * p.up;
        const bool is_exact = has_exact_result(c, unit, p.gate);

        y->want[i] = is_exact ? (double)(float)want : want;
        y->tol[i] = is_exact ? 0 : 8 * EPS * (0.1 + fabs(want));
    }
}

static void bwd_ref(struct op_call *c)
{
    const struct meg_glu *unit = ((const struct meg_glu_bwd_args *)c->args)->unit;
    const int64_t f = op_size(c, "f");
    const double *dy = op_in(c, "dy");
    struct op_tensor *dx = op_find(c, "dx");
    /*
     * For gate and up below 6, gradients are up to 72 for the squared ReLU, and up to 7 for the other units.  The quick
     * GELU has twelve roundings: of alpha * a, exp (two), 1 + e, 1 / (1 + e), 1 - s, four products, the sum and the
     * result.
     */
    const double most = unit->act == MEG_ACT_SQUARED_RELU ? 72 : 7;

    for (int64_t i = 0; i < op_size(c, "n") * f; i++) {
        const struct pair p = pair_of(c, unit, i);
        const int64_t at = i / f * 2 * f + i % f;
        const double dgate = p.gate_passes ? dy[i] * op_slope(unit->act, p.gate) * p.up : 0;
        const double dup = p.up_passes ? dy[i] * op_act(unit->act, p.gate) : 0;
        const bool is_exact = has_exact_result(c, unit, p.gate);

        dx->want[at] = is_exact ? (double)(float)dgate : dgate;
        dx->want[at + f] = is_exact ? (double)(float)dup : dup;
        dx->tol[at] = is_exact || !p.gate_passes ? 0 : 12 * EPS * most * fmax(1, fabs(dgate) / most);
        dx->tol[at + f] = is_exact || !p.up_passes ? 0 : 12 * EPS * most * fmax(1, fabs(dup) / most);
        if (isinf(p.gate) || (isnan(p.gate) && op_is_relu(unit->act)))
            dx->tol[at] = INFINITY; /* the slope is undefined */
    }
}

/* The limits are not bf16 or f16 values: no random value of these types is at a limit, where the derivative jumps. */
static const struct meg_glu units[] = {
    { MEG_ACT_SILU, 0, 0 },      { MEG_ACT_QUICK_GELU, 0, 0 },
    { MEG_ACT_GELU_TANH, 0, 0 }, { MEG_ACT_GELU_ERF, 0, 0 },
    { MEG_ACT_RELU, 0, 0 },      { MEG_ACT_SQUARED_RELU, 0, 0 },
    { MEG_ACT_SILU, 2.537f, 0 }, { MEG_ACT_QUICK_GELU, 3.141f, 1 }, /* of GPT-OSS, with a smaller limit */
    { MEG_ACT_RELU, 0, 0.5f },   { MEG_ACT_TANH, 0, 0 },
};
static const struct meg_glu gpt_oss = { MEG_ACT_QUICK_GELU, 7, 1 };

struct shape {
    int64_t n, f, pad;
};
static const struct shape small_shapes[] = { { 1, 1, 0 }, { 3, 5, 0 }, { 17, 33, 0 }, { 3, 1100, 0 } };
/*
 * The first shape has rows at multiples of 16 bytes and only complete vectors, the next two an incomplete last vector,
 * the fourth rows at addresses that are not multiples of 16.  The others have more columns than a block and more rows
 * than a grid.
 */
static const struct shape shapes[] = { { 3, 64, 8 }, { 2, 12, 4 },   { 3, 20, 12 },
                                       { 5, 13, 2 }, { 2, 2056, 0 }, { 4099, 3, 0 } };
static const struct meg_glu limits[] = { { 0, 0, 0 }, { 0, 1.5f, 1 }, { 0, 0, 0.5f } };

static struct meg_glu unit_of(int act, int limit)
{
    struct meg_glu unit = limits[limit];

    unit.act = (enum meg_act)act;
    return unit;
}

/* Rows of x may be aligned although the second halves of the rows are not. */
static struct meg_mat x_of(enum meg_dtype t, struct shape s)
{
    return op_mat(t, s.n, 2 * s.f, s.pad ? s.f + s.pad : 0);
}

/* ---- glu_fwd ---- */

static void fwd_one(int variant, struct meg_glu unit, enum meg_dtype ty, enum meg_dtype tx, struct shape s)
{
    OP_CASE(glu_fwd, variant, .unit = &unit, .y = op_mat(ty, s.n, s.f, s.pad + 8), .x = x_of(tx, s));
}

static void fwd_small(void)
{
    for (size_t u = 0; u < LEN(units); u++)
        for (size_t i = 0; i < LEN(small_shapes); i++)
            for (int t = 0; t < OP_FLOATS * OP_FLOATS; t++)
                fwd_one(PLAIN, units[u], (enum meg_dtype)(t % OP_FLOATS), (enum meg_dtype)(t / OP_FLOATS),
                        small_shapes[i]);
}

static void fwd_types(void)
{
    for (int act = MEG_ACT_NONE + 1; act < MEG_ACTS; act++)
        for (int i = 0; i < OP_FLOATS * OP_FLOATS * (int)LEN(limits); i++)
            fwd_one(PLAIN, unit_of(act, i % 3), (enum meg_dtype)(i / 9), (enum meg_dtype)(i / 3 % 3),
                    shapes[(act + i) % 4]);
}

static void fwd_shapes(void)
{
    for (size_t i = 0; i < LEN(shapes); i++)
        fwd_one(PLAIN, units[0], MEG_DTYPE_BF16, MEG_DTYPE_BF16, shapes[i]);
    fwd_one(PLAIN, units[0], MEG_DTYPE_BF16, MEG_DTYPE_BF16, (struct shape){ 0, 8, 0 });
}

static void fwd_special(void)
{
    for (int i = 3; i < MEG_ACTS * (int)LEN(limits); i++)
        fwd_one(SPECIAL, unit_of(i / 3, i % 3), MEG_DTYPE_F32, MEG_DTYPE_F32, shapes[0]);
    for (size_t u = 0; u < LEN(units); u++)
        fwd_one(EXTREME, units[u], MEG_DTYPE_F32, MEG_DTYPE_F32, (struct shape){ 1, 4, 0 });
    fwd_one(AT_LIMIT, gpt_oss, MEG_DTYPE_F32, MEG_DTYPE_F32, (struct shape){ 1, 5, 0 });
}

static void fwd_bench(void)
{
    fwd_one(PLAIN, units[0], MEG_DTYPE_BF16, MEG_DTYPE_BF16, (struct shape){ 16384, 4096, 0 });
}

OP_TEST(glu_fwd, .fill = fill, .ref = fwd_ref, .bench = fwd_bench,
        .group = { { "small shapes", fwd_small, .is_cpu_only = true },
                   { "types and units", fwd_types },
                   { "shapes", fwd_shapes },
                   { "limits, infinity and NaN", fwd_special } });

/* ---- glu_bwd ---- */

/* If has_space is set, dx has other row padding than x, and thus cannot be x. */
static void bwd_one(int variant, struct meg_glu unit, enum meg_dtype tdx, enum meg_dtype tdy, enum meg_dtype tx,
                    struct shape s, bool has_space)
{
    const struct meg_mat dx = has_space ? op_mat(tdx, s.n, 2 * s.f, s.f + s.pad + 8) : x_of(tdx, s);

    OP_CASE(glu_bwd, variant, .unit = &unit, .dx = dx, .dy = op_mat(tdy, s.n, s.f, s.pad), .x = x_of(tx, s));
}

static void bwd_small(void)
{
    for (size_t u = 0; u < LEN(units); u++)
        for (size_t i = 0; i < LEN(small_shapes); i++)
            for (int t = 0; t < OP_FLOATS * OP_FLOATS; t++)
                bwd_one(PLAIN, units[u], (enum meg_dtype)(t / 3), (enum meg_dtype)(t % 3), (enum meg_dtype)(t / 3),
                        small_shapes[i], false);
}

static void bwd_types(void)
{
    for (int act = MEG_ACT_NONE + 1; act < MEG_ACTS; act++)
        for (int i = 0; i < OP_FLOATS * OP_FLOATS * OP_FLOATS * (int)LEN(limits); i++)
            bwd_one(PLAIN, unit_of(act, i % 3), (enum meg_dtype)(i / 27), (enum meg_dtype)(i / 9 % 3),
                    (enum meg_dtype)(i / 3 % 3), shapes[(act + i) % 4], true);
}

static void bwd_shapes(void)
{
    for (size_t i = 0; i < LEN(shapes); i++)
        bwd_one(PLAIN, units[0], MEG_DTYPE_BF16, MEG_DTYPE_BF16, MEG_DTYPE_BF16, shapes[i], false);
}

static void bwd_special(void)
{
    for (int i = 3; i < MEG_ACTS * (int)LEN(limits); i++)
        bwd_one(SPECIAL, unit_of(i / 3, i % 3), MEG_DTYPE_F32, MEG_DTYPE_F32, MEG_DTYPE_F32, shapes[0], true);
    for (size_t u = 0; u < LEN(units); u++)
        bwd_one(EXTREME, units[u], MEG_DTYPE_F32, MEG_DTYPE_F32, MEG_DTYPE_F32, (struct shape){ 1, 4, 0 }, true);
    bwd_one(AT_LIMIT, gpt_oss, MEG_DTYPE_F32, MEG_DTYPE_F32, MEG_DTYPE_F32, (struct shape){ 1, 5, 0 }, true);
}

static void bwd_bench(void)
{
    bwd_one(PLAIN, units[0], MEG_DTYPE_BF16, MEG_DTYPE_BF16, MEG_DTYPE_BF16, (struct shape){ 16384, 4096, 0 }, false);
}

OP_TEST(glu_bwd, .fill = fill, .ref = bwd_ref, .grad_of = &op_test_glu_fwd, .bench = bwd_bench,
        .group = { { "small shapes", bwd_small, .is_cpu_only = true },
                   { "types and units", bwd_types },
                   { "shapes", bwd_shapes },
                   { "limits, infinity and NaN", bwd_special } });
