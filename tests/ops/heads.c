/* heads.c - cases of rope, qk_norm_fwd, qk_norm_bwd and copy_heads, whose operands are views of heads. */
#include <stdlib.h>
#include "base/mem.h"
#include "ops.h"

/* The shape of heads in rows.  Each group has one more head of d columns, which is not part of the view. */
struct shape {
    int64_t s, b, g, heads, d, half;
    int64_t pad;    /* row padding, in elements */
    int64_t offset; /* column of the first head */
    int is_interleaved;
};

static struct meg_heads heads_of(enum meg_dtype t, struct shape s, int64_t more_pad)
{
    const int64_t ld = s.offset + s.g * (s.heads + 1) * s.d + s.pad + more_pad;

    return (
        struct meg_heads){ OFFSET((size_t)s.offset * meg_dtype_size(t)), t, s.b * ld, ld, (s.heads + 1) * s.d, s.d };
}

/*
 * PLAIN: angles.  EXACT: multiples of 2^-7 as elements, cosines and sines, so that only the conversion to the type of
 * the result rounds.  SCALED: elements of one head are 10^4 times as large.
 */
enum { PLAIN, EXACT, SCALED };

/* Set the tables of cosines and sines, and positions. */
static void fill_angles(struct op_call *c, const char *cos_name, const char *sin_name, const char *position_name)
{
    struct op_tensor *const co = op_find(c, cos_name), *const si = op_find(c, sin_name);
    struct op_tensor *const position = op_find(c, position_name);

    for (int64_t i = 0; co && co->v && c->variant != EXACT && i < co->numel; i++) {
        const double angle = 9 * op_uniform();

        co->v[i] = cos(angle);
        si->v[i] = sin(angle);
    }
    for (int64_t i = 0; position && i < position->numel; i++)
        position->v[i] = (double)op_below(OP_POSITIONS);
}

/* The arguments of a rotation. */
struct rotation {
    const double *cos, *sin, *position;
    int64_t half;
    int is_interleaved;
    double sign;
};

/* Rotate a head of token `row` in place. */
static void rotate(const struct rotation *r, double *head, int64_t row)
{
    for (int64_t p = 0; p < r->half; p++) {
        const int64_t at = (int64_t)r->position[row] * r->half + p;
        double *const u = head + (r->is_interleaved ? 2 * p : p);
        double *const v = head + (r->is_interleaved ? 2 * p + 1 : p + r->half);
        const double first = *u * r->cos[at] - r->sign * *v * r->sin[at];

        *v = *v * r->cos[at] + r->sign * *u * r->sin[at];
        *u = first;
    }
}

/* ---- rope ---- */

static void rope_fill(struct op_call *c)
{
    fill_angles(c, "cos", "sin", "position");
    for (int i = 0; i < c->n && c->variant == EXACT; i++)
        for (int64_t k = 0; c->tensor[i].dtype <= MEG_DTYPE_F16 && k < c->tensor[i].numel; k++)
            c->tensor[i].v[k] = rint(128 * c->tensor[i].v[k]) / 128;
}

static void rope_ref(struct op_call *c)
{
    const struct meg_rope_args *a = c->args;
    const struct rotation r = { op_in(c, "cos"), op_in(c, "sin"),   op_in(c, "position"),
                                a->half,         a->is_interleaved, (double)a->sign };
    struct op_tensor *x = op_find(c, "x");
    const int64_t cols = 2 * a->half;

    for (int64_t i = 0; i < x->numel; i += cols)
        rotate(&r, x->want + i, i / cols / (a->g * a->heads));
    for (int64_t i = 0; i < x->numel; i++)
        x->tol[i] = c->variant == EXACT ? 0 : 4 * EPS;
}

static void rope_one(int variant, enum meg_dtype t, struct shape s, float sign)
{
    OP_CASE(rope, variant, .x = heads_of(t, s, 0), .s = s.s, .b = s.b, .g = s.g, .heads = s.heads, .half = s.half,
            .is_interleaved = s.is_interleaved, .sign = sign);
}

/* Shapes of which kernels load all, some or none of the columns as vectors.  Some have columns that are not rotated. */
static const struct shape rope_shapes[] = {
    { 3, 2, 2, 3, 64, 32, 0, 0, 0 },    { 3, 2, 2, 3, 128, 64, 8, 0, 0 },  { 5, 1, 3, 1, 48, 24, 0, 8, 0 },
    { 3, 2, 2, 3, 64, 8, 0, 0, 0 },     { 3, 2, 1, 2, 24, 12, 0, 0, 0 },   { 3, 2, 1, 2, 24, 10, 0, 0, 0 },
    { 2, 3, 2, 2, 7, 3, 1, 1, 0 },      { 2, 3, 2, 2, 2, 1, 0, 0, 0 },     { 3, 2, 2, 3, 128, 64, 3, 0, 0 },
    { 3, 2, 2, 3, 128, 64, 0, 4, 0 },   { 1, 2, 1, 1, 608, 304, 0, 0, 0 }, { 1, 2, 1, 1, 4096, 2048, 0, 0, 0 },
    { 1, 2, 1, 1, 4000, 301, 0, 0, 0 }, { 0, 2, 1, 1, 64, 32, 0, 0, 0 },   { 5, 3, 2, 3, 22, 11, 3, 0, 0 },
    { 5, 3, 2, 3, 22, 3, 3, 0, 0 },
};

static void rope_cases(int is_interleaved)
{
    for (int i = 0; i < (int)LEN(rope_shapes); i++)
        for (int t = 0; t < OP_FLOATS; t++) {
            struct shape s = rope_shapes[i];

            s.is_interleaved = is_interleaved;
            rope_one(EXACT, (enum meg_dtype)t, s, (i + t) % 2 ? 1 : -1);
            rope_one(PLAIN, (enum meg_dtype)t, s, (i + t) % 2 ? -1 : 1);
        }
}

static void rope_halves(void)
{
    rope_cases(0);
}

static void rope_interleaved(void)
{
    rope_cases(1);
}

static void rope_bench(void)
{
    rope_one(PLAIN, MEG_DTYPE_BF16, (struct shape){ 16384, 1, 8, 4, 128, 64, 0, 0, 0 }, 1);
}

/* The tables have OP_POSITIONS rows. */
OP_TEST(rope, .fill = rope_fill, .ref = rope_ref, .bench = rope_bench,
        .extra = { { "cos", offsetof(struct meg_rope_args, cos), MEG_DTYPES, "19 half" },
                   { "sin", offsetof(struct meg_rope_args, sin), MEG_DTYPES, "19 half" } },
        .group = { { "types and shapes", rope_halves }, { "interleaved pairs", rope_interleaved } });

/* ---- QK-norm ---- */

static struct meg_qk_norm norm_of(struct shape s)
{
    void *const on = s.half ? ON : NULL;

    return (struct meg_qk_norm){ s.s, s.b, s.g, s.heads, s.d, 1e-3f, s.half, s.is_interleaved, on, on, on };
}

static const struct meg_qk_norm *norm_in(const struct op_call *c)
{
    return *(const struct meg_qk_norm *const *)meg_op_field(c->test->row->field, c->args);
}

static double rstd_of(const double *x, int64_t d, double eps)
{
    double sum = 0;

    for (int64_t i = 0; i < d; i++)
        sum += x[i] * x[i];
    return 1 / sqrt(sum / (double)d + eps);
}

static void qk_fill(struct op_call *c)
{
    const struct meg_qk_norm *q = norm_in(c);
    double *x = op_in(c, "x"), *rstd = op_in(c, "rstd");
    const bool is_bwd = op_find(c, "dx");

    fill_angles(c, "q.cos", "q.sin", "q.position");
    for (int64_t i = 0; c->variant == SCALED && i < q->d; i++)
        x[(q->heads + 2) * q->d + i] *= 1e4; /* of token 1 */
    op_round(c);
    for (int64_t i = 0; is_bwd && i < q->s * q->b * q->g * q->heads; i++)
        rstd[i] = rstd_of(x + i * q->d, q->d, (double)q->eps);
}

static struct rotation rotation_of(struct op_call *c, const struct meg_qk_norm *q, double sign)
{
    return (struct rotation){ op_in(c, "q.cos"), op_in(c, "q.sin"), op_in(c, "q.position"),
                              q->half,           q->is_interleaved, sign };
}

static void qk_fwd_ref(struct op_call *c)
{
    const struct meg_qk_norm *q = norm_in(c);
    const struct rotation r = rotation_of(c, q, 1);
    const double *x = op_in(c, "x"), *w = op_in(c, "w");
    struct op_tensor *const y = op_find(c, "y"), *rstd = op_find(c, "rstd");

    for (int64_t i = 0; i < rstd->numel; i++) {
        double *const out = y->want + i * q->d;
        const double rs = rstd_of(x + i * q->d, q->d, (double)q->eps);

        rstd->want[i] = rs;
        rstd->tol[i] = 8 * EPS * rs * fmax(1, sqrt((double)q->d) / 8);
        for (int64_t k = 0; k < q->d; k++) {
            out[k] = x[i * q->d + k] * rs * w[k];
            y->tol[i * q->d + k] = 16 * EPS;
        }
        rotate(&r, out, i / (q->g * q->heads));
    }
}

static void qk_bwd_ref(struct op_call *c)
{
    const struct meg_qk_norm *q = norm_in(c);
    const struct rotation r = rotation_of(c, q, -1);
    const double *x = op_in(c, "x"), *w = op_in(c, "w"), *dy = op_in(c, "dy");
    struct op_tensor *const dx = op_find(c, "dx"), *dw = op_find(c, "dw");
    const int64_t d = q->d, n = q->s * q->b * q->g * q->heads;
    double *const g = meg_new((size_t)d * sizeof *g), most = 1;

    for (int64_t k = 0; dw && k < d; k++)
        dw->want[k] = 0;
    for (int64_t i = 0; i < n; i++) {
        const double rs = rstd_of(x + i * d, d, (double)q->eps);
        double sum = 0;

        memcpy(g, dy + i * d, (size_t)d * sizeof *g);
        rotate(&r, g, i / (q->g * q->heads));
        for (int64_t k = 0; k < d; k++) {
            if (dw)
                dw->want[k] += g[k] * x[i * d + k] * rs;
            sum += g[k] * w[k] * x[i * d + k] * rs;
        }
        for (int64_t k = 0; k < d; k++) {
            dx->want[i * d + k] = rs * (g[k] * w[k] - x[i * d + k] * rs * sum / (double)d);
            dx->tol[i * d + k] = 60 * EPS * fmax(1, rs / 4);
        }
        most = fmax(most, rs / 4);
    }
    for (int64_t k = 0; dw && k < d; k++)
        dw->tol[k] = 400 * EPS * fmax(1, sqrt((double)n / 126));
    free(g);
}

static const struct shape qk_shapes[] = {
    { 3, 2, 2, 3, 128, 64, 0, 0, 0 },  { 3, 2, 2, 3, 64, 32, 8, 0, 1 },     { 2, 2, 2, 2, 64, 0, 0, 0, 0 },
    { 3, 2, 2, 3, 80, 16, 0, 8, 0 },   { 2, 2, 1, 2, 24, 6, 0, 0, 1 },      { 2, 3, 2, 2, 13, 3, 1, 1, 0 },
    { 2, 3, 2, 2, 13, 5, 1, 1, 1 },    { 2, 3, 2, 2, 1, 0, 0, 0, 0 },       { 9, 4, 2, 8, 16, 8, 0, 0, 0 },
    { 2, 1, 1, 1, 600, 300, 0, 0, 0 }, { 1, 2, 1, 1, 4096, 2048, 0, 0, 0 }, { 2, 1, 1, 2, 1030, 200, 0, 0, 1 },
    { 3, 2, 2, 3, 24, 8, 0, 0, 0 },    { 3, 2, 2, 3, 40, 0, 0, 0, 0 },      { 0, 2, 1, 1, 64, 32, 0, 0, 0 },
};
/* With all types of the operands and gradients. */
static const struct shape typed_shapes[] = { { 7, 3, 2, 3, 16, 8, 3, 0, 0 },
                                             { 7, 3, 2, 3, 22, 11, 3, 0, 1 },
                                             { 7, 3, 2, 3, 22, 3, 3, 0, 0 },
                                             { 7, 3, 2, 3, 9, 0, 3, 0, 0 } };

static void qk_fwd_one(int variant, enum meg_dtype ty, enum meg_dtype tx, struct shape s)
{
    const struct meg_qk_norm q = norm_of(s);

    OP_CASE(qk_norm_fwd, variant, .q = &q, .y = heads_of(ty, s, 8), .x = heads_of(tx, s, 0));
}

static void qk_fwd_shapes(void)
{
    for (int i = 0; i < (int)LEN(qk_shapes); i++)
        qk_fwd_one(PLAIN, i % 2 ? MEG_DTYPE_F32 : MEG_DTYPE_BF16, i % 2 ? MEG_DTYPE_F32 : MEG_DTYPE_BF16, qk_shapes[i]);
}

static void qk_fwd_types(void)
{
    for (int i = 0; i < OP_FLOATS * OP_FLOATS; i++)
        for (int s = 1; s < 5; s += 3)
            qk_fwd_one(PLAIN, (enum meg_dtype)(i / 3), (enum meg_dtype)(i % 3), qk_shapes[s]);
    for (int t = 0; t < OP_FLOATS; t++)
        for (size_t i = 0; i < LEN(typed_shapes); i++)
            qk_fwd_one(PLAIN, (enum meg_dtype)t, (enum meg_dtype)t, typed_shapes[i]);
}

/* With the rstd of the wrong head, the result would be clearly different. */
static void qk_fwd_scale(void)
{
    qk_fwd_one(SCALED, MEG_DTYPE_F32, MEG_DTYPE_F32, (struct shape){ 2, 1, 1, 4, 16, 8, 0, 0, 0 });
}

OP_TEST(qk_norm_fwd, .fill = qk_fill, .ref = qk_fwd_ref,
        .group = {
            { "shapes", qk_fwd_shapes }, { "types", qk_fwd_types }, { "each head has its own scale", qk_fwd_scale } });

static void qk_bwd_one(enum meg_dtype tdx, enum meg_dtype tdy, enum meg_dtype tx, enum meg_dtype grad, struct shape s,
                       bool accumulate)
{
    const struct meg_qk_norm q = norm_of(s);

    OP_CASE(qk_norm_bwd, PLAIN, .q = &q, .dx = heads_of(tdx, s, 0), .dw = ON, .grad = grad, .dy = heads_of(tdy, s, 0),
            .x = heads_of(tx, s, 8), .accumulate = accumulate);
}

static void qk_bwd_shapes(void)
{
    for (int i = 0; i < (int)LEN(qk_shapes); i++) {
        const enum meg_dtype t = i % 2 ? MEG_DTYPE_F32 : MEG_DTYPE_BF16;

        qk_bwd_one(t, t, t, MEG_DTYPE_F32, qk_shapes[i], i % 3 == 0);
    }
    for (int t = 0; t < OP_FLOATS; t++)
        qk_bwd_one((enum meg_dtype)t, (enum meg_dtype)t, (enum meg_dtype)t, (enum meg_dtype)t, qk_shapes[0], true);
}

static void qk_bwd_types(void)
{
    for (int i = 0; i < OP_FLOATS * OP_FLOATS * OP_FLOATS; i++)
        qk_bwd_one((enum meg_dtype)(i / 9), (enum meg_dtype)(i / 3 % 3), (enum meg_dtype)(i % 3),
                   (enum meg_dtype)((i + i / 3) % 3), qk_shapes[1 + i % 2 * 3], i % 2);
    for (int t = 0; t < OP_FLOATS; t++)
        for (int grad = 0; grad < OP_FLOATS; grad++)
            for (size_t i = 0; i < LEN(typed_shapes) * 2; i++)
                qk_bwd_one((enum meg_dtype)t, (enum meg_dtype)t, (enum meg_dtype)t, (enum meg_dtype)grad,
                           typed_shapes[i / 2], i % 2);
}

/* There are more heads than a grid processes at once. */
static void qk_bwd_many(void)
{
    qk_bwd_one(MEG_DTYPE_F32, MEG_DTYPE_F32, MEG_DTYPE_F32, MEG_DTYPE_F32,
               (struct shape){ 367, 1, 1, 3, 528, 264, 0, 0, 0 }, false);
}

/* Without rows, the gradient of w is 0, or unchanged if it is accumulated. */
static void qk_bwd_empty(void)
{
    const struct shape s = { 0, 1, 1, 3, 40, 8, 0, 0, 0 };

    qk_bwd_one(MEG_DTYPE_F32, MEG_DTYPE_F32, MEG_DTYPE_F32, MEG_DTYPE_BF16, s, false);
    qk_bwd_one(MEG_DTYPE_F32, MEG_DTYPE_F32, MEG_DTYPE_F32, MEG_DTYPE_BF16, s, true);
}

static void qk_bwd_frozen(void)
{
    for (int t = 0; t < OP_FLOATS; t++) {
        const struct shape s = qk_shapes[t];
        const struct meg_qk_norm q = norm_of(s);

        OP_CASE(qk_norm_bwd, PLAIN, .q = &q, .dx = heads_of((enum meg_dtype)t, s, 0),
                .dy = heads_of((enum meg_dtype)t, s, 0), .x = heads_of((enum meg_dtype)t, s, 8));
    }
}

OP_TEST(qk_norm_bwd, .fill = qk_fill, .ref = qk_bwd_ref, .grad_of = &op_test_qk_norm_fwd, .added = "dw",
        .group = { { "shapes, in place", qk_bwd_shapes },
                   { "types", qk_bwd_types },
                   { "more heads than threads", qk_bwd_many },
                   { "no rows", qk_bwd_empty },
                   { "frozen weights", qk_bwd_frozen } });

/* ---- copy_heads ---- */

/* With dst_offset, the sequences have the reverse order in dst. */
static void copy_fill(struct op_call *c)
{
    const struct meg_copy_heads_args *a = c->args;
    struct op_tensor *const src = op_find(c, "src");
    double *offset = op_in(c, "dst_offset");

    for (int64_t i = 0; i < src->numel && src->dtype > MEG_DTYPE_F64; i++)
        src->v[i] = (double)(op_below((int64_t)1 << 31) - (1 << 30));
    for (int64_t i = 0; offset && i < a->b; i++)
        offset[i] = (double)((a->b - 1 - i) * a->dst.ld_b);
}

static void copy_ref(struct op_call *c)
{
    const struct meg_copy_heads_args *a = c->args;
    struct op_tensor *dst = op_find(c, "dst");
    const double *src = op_in(c, "src");
    const int64_t n = a->g * a->d; /* elements of a token */

    for (int64_t i = 0; i < dst->numel; i++) {
        const int64_t sequence = i / n % a->b, from = op_in(c, "dst_offset") ? a->b - 1 - sequence : sequence;

        dst->want[i] = src[i + (from - sequence) * n];
    }
}

/*
 * Copy heads [s,b,g,d] that begin at element `offset` and are `gap` elements apart, in the order s, b, g in src and
 * g, b, s in dst.
 */
static void copy_one(enum meg_dtype t, const int64_t n[4], int64_t gap, int64_t offset, bool is_reversed)
{
    const int64_t s = n[0], b = n[1], g = n[2], ld = n[3] + gap;
    void *const first = OFFSET((size_t)offset * meg_dtype_size(t));

    OP_CASE(copy_heads, PLAIN, .dst = { first, t, ld, s * ld, s * b * ld, 0 }, .dst_offset = is_reversed ? ON : NULL,
            .src = { first, t, b * g * ld, g * ld, ld, 0 }, .s = s, .b = b, .g = g, .d = n[3]);
}

static void copy_types(void)
{
    static const struct {
        int64_t n[4], gap, offset;
        bool is_reversed;
    } copies[] = {
        { { 3, 2, 4, 16 }, 8, 8, false }, { { 3, 2, 4, 16 }, 8, 8, true },  { { 2, 3, 3, 16 }, 7, 0, false },
        { { 2, 3, 3, 16 }, 7, 0, true },  { { 1, 4, 2, 16 }, 0, 0, false }, { { 1, 4, 2, 16 }, 0, 0, true },
        { { 3, 2, 4, 16 }, 0, 0, false }, { { 3, 2, 3, 12 }, 4, 4, false }, { { 2, 3, 3, 16 }, 8, 2, false },
        { { 4, 1, 2, 5 }, 2, 1, false },  { { 4, 1, 2, 5 }, 3, 0, false },  { { 1, 1, 1, 5000 }, 0, 0, false },
        { { 0, 2, 3, 8 }, 0, 0, false },  { { 3, 2, 2, 5 }, 10, 7, false }, { { 3, 2, 2, 5 }, 10, 7, true },
    };

    for (int t = 0; t < MEG_DTYPES; t++)
        for (size_t i = 0; i < LEN(copies); i++)
            copy_one((enum meg_dtype)t, copies[i].n, copies[i].gap, copies[i].offset, copies[i].is_reversed);
}

static void copy_many(void)
{
    copy_one(MEG_DTYPE_BF16, (const int64_t[]){ 1025, 4, 1, 2 }, 0, 0, false);
}

static double copy_cuda(const struct op_call *c, const struct op_tensor *t)
{
    (void)c, (void)t;
    return 0;
}

OP_TEST(copy_heads, .fill = copy_fill, .ref = copy_ref, .cuda = copy_cuda,
        .extra = { { "dst", offsetof(struct meg_copy_heads_args, dst), MEG_DTYPES, "s b g 1 d" } },
        .group = { { "types, strides and alignment", copy_types }, { "many heads", copy_many } });
