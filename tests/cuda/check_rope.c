/* check_rope.c - cases of rotary position embedding and QK-norm. */
#include <stdlib.h>
#include "check.h"

enum { POSITIONS = 19, TYPES = MEG_DTYPE_F16 + 1 };

/*
 * The shape of heads in the rows of a matrix.  Each group has one more head of d columns, which is not part of the
 * view.
 */
struct shape {
    int64_t s, b, g, heads, d, half;
    int64_t pad;    /* row padding, in elements */
    int64_t offset; /* column of the first head */
    int is_interleaved;
};

static struct twin rows_of(enum meg_dtype t, struct shape s, bool is_output)
{
    const int64_t cols = s.offset + s.g * (s.heads + 1) * s.d;

    return is_output ? twin_output(t, s.s * s.b, cols, s.pad) : twin_random(t, s.s * s.b, cols, s.pad);
}

static struct meg_heads heads_of(struct meg_mat m, struct shape s)
{
    return (
        struct meg_heads){ meg_element(m.p, s.offset, m.dtype), m.dtype, s.b * m.ld, m.ld, (s.heads + 1) * s.d, s.d };
}

/* Random tables of cosines and sines, and random positions. */
struct angles {
    struct twin cos, sin;
    struct twin_bytes position;
};

static struct angles angles_of(struct shape s)
{
    struct angles a = { twin_random(MEG_DTYPE_F32, POSITIONS, s.half, 0),
                        twin_random(MEG_DTYPE_F32, POSITIONS, s.half, 0),
                        { 0 } };
    int32_t *position = malloc((size_t)(s.s * s.b + 1) * sizeof *position);

    for (int64_t i = 0; i < s.s * s.b; i++)
        position[i] = (int32_t)op_below(POSITIONS);
    a.position = twin_bytes(position, (size_t)(s.s * s.b) * sizeof *position);
    free(position);
    return a;
}

/* ---- rope ---- */

static void rope_one(enum meg_dtype t, struct shape s, float sign)
{
    const struct twin x = rows_of(t, s, false);
    const struct angles a = angles_of(s);

    MEG_CALL(cpu, NULL, rope, .x = heads_of(x.host, s), .s = s.s, .b = s.b, .g = s.g, .heads = s.heads, .half = s.half,
             .is_interleaved = s.is_interleaved, .cos = a.cos.host.p, .sin = a.sin.host.p, .position = a.position.host,
             .sign = sign);
    MEG_CALL(gpu, stream, rope, .x = heads_of(x.dev, s), .s = s.s, .b = s.b, .g = s.g, .heads = s.heads, .half = s.half,
             .is_interleaved = s.is_interleaved, .cos = a.cos.dev.p, .sin = a.sin.dev.p, .position = a.position.dev,
             .sign = sign);
    expect_near(&x, op_tolerance(t), "x");
}

/* Shapes of which kernels load all, some or none of the columns as vectors.  Some have columns that are not rotated. */
static const struct shape rope_shapes[] = {
    { 3, 2, 2, 3, 64, 32, 0, 0, 0 },    { 3, 2, 2, 3, 128, 64, 8, 0, 0 },  { 5, 1, 3, 1, 48, 24, 0, 8, 0 },
    { 3, 2, 2, 3, 64, 8, 0, 0, 0 },     { 3, 2, 1, 2, 24, 12, 0, 0, 0 },   { 3, 2, 1, 2, 24, 10, 0, 0, 0 },
    { 2, 3, 2, 2, 7, 3, 1, 1, 0 },      { 2, 3, 2, 2, 2, 1, 0, 0, 0 },     { 3, 2, 2, 3, 128, 64, 3, 0, 0 },
    { 3, 2, 2, 3, 128, 64, 0, 4, 0 },   { 1, 2, 1, 1, 608, 304, 0, 0, 0 }, { 1, 2, 1, 1, 4096, 2048, 0, 0, 0 },
    { 1, 2, 1, 1, 4000, 301, 0, 0, 0 }, { 0, 2, 1, 1, 64, 32, 0, 0, 0 },
};

static void rope_cases(int is_interleaved)
{
    for (size_t i = 0; i < sizeof rope_shapes / sizeof *rope_shapes; i++)
        for (int t = 0; t < TYPES; t++) {
            struct shape s = rope_shapes[i];

            s.is_interleaved = is_interleaved;
            rope_one((enum meg_dtype)t, s, (i + (size_t)t) % 2 ? 1.0f : -1.0f);
        }
}

static void rope(void)
{
    rope_cases(0);
}

static void rope_interleaved(void)
{
    rope_cases(1);
}

/* ---- QK-norm ---- */

static struct meg_qk_norm host_norm(struct shape s, const struct angles *a)
{
    return (struct meg_qk_norm){
        s.s, s.b, s.g, s.heads, s.d, 1e-2f, s.half, s.is_interleaved, a->cos.host.p, a->sin.host.p, a->position.host
    };
}

/* Return q with cos, sin and position in device memory, or NULL if there is no rotation. */
static struct meg_qk_norm dev_norm(struct meg_qk_norm q, const struct angles *a)
{
    q.cos = q.half ? a->cos.dev.p : NULL;
    q.sin = q.half ? a->sin.dev.p : NULL;
    q.position = q.half ? a->position.dev : NULL;
    return q;
}

static void qk_norm_fwd_one(enum meg_dtype ty, enum meg_dtype tx, struct shape s)
{
    const struct angles a = angles_of(s);
    const struct meg_qk_norm h = host_norm(s, &a), d = dev_norm(h, &a);
    const struct shape sy = { s.s, s.b, s.g, s.heads, s.d, s.half, s.pad + 8, s.offset, 0 };
    const struct twin x = rows_of(tx, s, false), y = rows_of(ty, sy, true), w = twin_random(ty, 1, s.d, 0);
    const struct twin rstd = twin_output(MEG_DTYPE_F32, s.s * s.b, s.g * s.heads, 0);

    MEG_CALL(cpu, NULL, qk_norm_fwd, .q = &h, .y = heads_of(y.host, sy), .rstd = rstd.host.p, .x = heads_of(x.host, s),
             .w = w.host.p);
    MEG_CALL(gpu, stream, qk_norm_fwd, .q = &d, .y = heads_of(y.dev, sy), .rstd = rstd.dev.p, .x = heads_of(x.dev, s),
             .w = w.dev.p);
    expect_near(&y, op_tolerance(ty), "y");
    expect_near(&rstd, 1e-5, "rstd");
}

static const struct shape norm_shapes[] = {
    { 3, 2, 2, 3, 128, 64, 0, 0, 0 },  { 3, 2, 2, 3, 64, 32, 8, 0, 1 },     { 2, 2, 2, 2, 64, 0, 0, 0, 0 },
    { 3, 2, 2, 3, 80, 16, 0, 8, 0 },   { 2, 2, 1, 2, 24, 6, 0, 0, 1 },      { 2, 3, 2, 2, 13, 3, 1, 1, 0 },
    { 2, 3, 2, 2, 13, 5, 1, 1, 1 },    { 2, 3, 2, 2, 1, 0, 0, 0, 0 },       { 9, 4, 2, 8, 16, 8, 0, 0, 0 },
    { 2, 1, 1, 1, 600, 300, 0, 0, 0 }, { 1, 2, 1, 1, 4096, 2048, 0, 0, 0 }, { 2, 1, 1, 2, 1030, 200, 0, 0, 1 },
    { 3, 2, 2, 3, 24, 8, 0, 0, 0 },    { 3, 2, 2, 3, 40, 0, 0, 0, 0 },      { 0, 2, 1, 1, 64, 32, 0, 0, 0 },
};
enum { NORM_SHAPES = sizeof norm_shapes / sizeof *norm_shapes };

static void qk_norm_fwd(void)
{
    for (int i = 0; i < NORM_SHAPES; i++)
        qk_norm_fwd_one(i % 2 ? MEG_DTYPE_F32 : MEG_DTYPE_BF16, i % 2 ? MEG_DTYPE_F32 : MEG_DTYPE_BF16, norm_shapes[i]);
}

static void qk_norm_fwd_types(void)
{
    for (int i = 0; i < TYPES * TYPES; i++)
        for (int s = 1; s < 5; s += 3)
            qk_norm_fwd_one((enum meg_dtype)(i / TYPES), (enum meg_dtype)(i % TYPES), norm_shapes[s]);
}

/*
 * The values of one head are 10^4 times as large as those of the others, so that with the rstd of the wrong head, the
 * result would be clearly different.
 */
static void qk_norm_fwd_scale(void)
{
    const struct shape s = { 2, 1, 1, 4, 16, 8, 0, 0, 0 };
    const struct angles a = angles_of(s);
    const struct meg_qk_norm h = host_norm(s, &a), d = dev_norm(h, &a);
    struct twin x = rows_of(MEG_DTYPE_F32, s, false);
    const struct twin y = rows_of(MEG_DTYPE_F32, s, true), w = twin_random(MEG_DTYPE_F32, 1, s.d, 0);
    const struct twin rstd = twin_output(MEG_DTYPE_F32, s.s * s.b, s.g * s.heads, 0);

    for (int64_t c = 0; c < s.d; c++)
        twin_set(&x, 1, 2 * s.d + c, 1e4f * twin_get(&x, 1, 2 * s.d + c));
    twin_upload(&x);
    MEG_CALL(cpu, NULL, qk_norm_fwd, .q = &h, .y = heads_of(y.host, s), .rstd = rstd.host.p, .x = heads_of(x.host, s),
             .w = w.host.p);
    MEG_CALL(gpu, stream, qk_norm_fwd, .q = &d, .y = heads_of(y.dev, s), .rstd = rstd.dev.p, .x = heads_of(x.dev, s),
             .w = w.dev.p);
    expect_near(&y, 1e-5, "y");
    expect_near(&rstd, 1e-5, "rstd");
}

static void qk_norm_bwd_one(enum meg_dtype tdx, enum meg_dtype tdy, enum meg_dtype tx, enum meg_dtype grad,
                            struct shape s, bool is_in_place, bool accumulate)
{
    const struct angles a = angles_of(s);
    const struct meg_qk_norm h = host_norm(s, &a), d = dev_norm(h, &a);
    const struct shape sx = { s.s, s.b, s.g, s.heads, s.d, s.half, s.pad + 8, s.offset, 0 };
    const struct twin x = rows_of(tx, sx, false), dy = rows_of(tdy, s, false), w = twin_random(tdy, 1, s.d, 0);
    const struct twin dx = is_in_place ? dy : rows_of(tdx, s, true);
    const struct twin dw = accumulate ? twin_random(grad, 1, s.d, 0) : twin_output(grad, 1, s.d, 0);
    struct twin rstd = twin_random(MEG_DTYPE_F32, s.s * s.b, s.g * s.heads, 0);

    for (int64_t r = 0; r < rstd.host.rows; r++)
        for (int64_t c = 0; c < rstd.host.cols; c++)
            twin_set(&rstd, r, c, 2 + twin_get(&rstd, r, c));
    twin_upload(&rstd);
    MEG_CALL(cpu, NULL, qk_norm_bwd, .q = &h, .dx = heads_of(dx.host, s), .dw = dw.host.p, .grad = grad,
             .dy = heads_of(dy.host, s), .x = heads_of(x.host, sx), .w = w.host.p, .rstd = rstd.host.p,
             .accumulate = accumulate);
    MEG_CALL(gpu, stream, qk_norm_bwd, .q = &d, .dx = heads_of(dx.dev, s), .dw = dw.dev.p, .grad = grad,
             .dy = heads_of(dy.dev, s), .x = heads_of(x.dev, sx), .w = w.dev.p, .rstd = rstd.dev.p,
             .accumulate = accumulate);
    expect_near(&dx, op_tolerance(dx.host.dtype), "dx");
    expect_near(&dw, op_tolerance(grad), "dw");
}

static void qk_norm_bwd(void)
{
    for (int i = 0; i < NORM_SHAPES; i++) {
        const enum meg_dtype t = i % 2 ? MEG_DTYPE_F32 : MEG_DTYPE_BF16;

        qk_norm_bwd_one(t, t, t, MEG_DTYPE_F32, norm_shapes[i], false, i % 3 == 0);
    }
}

static void qk_norm_bwd_types(void)
{
    for (int i = 0; i < TYPES * TYPES * TYPES; i++)
        qk_norm_bwd_one((enum meg_dtype)(i / TYPES / TYPES), (enum meg_dtype)(i / TYPES % TYPES),
                        (enum meg_dtype)(i % TYPES), (enum meg_dtype)((i + i / TYPES) % TYPES),
                        norm_shapes[1 + i % 2 * 3], false, i % 2);
}

static void qk_norm_bwd_in_place(void)
{
    for (int t = 0; t < TYPES; t++)
        qk_norm_bwd_one((enum meg_dtype)t, (enum meg_dtype)t, (enum meg_dtype)t, (enum meg_dtype)t, norm_shapes[0],
                        true, true);
}

/* Compare with more heads than a grid processes at once. */
static void qk_norm_bwd_many(void)
{
    const struct shape s = { 367, 1, 1, 3, 528, 264, 0, 0, 0 };

    qk_norm_bwd_one(MEG_DTYPE_F32, MEG_DTYPE_F32, MEG_DTYPE_F32, MEG_DTYPE_F32, s, false, false);
}

/* Without rows, the gradient of w is 0, or unchanged if it is accumulated. */
static void qk_norm_bwd_empty(void)
{
    const struct shape s = { 0, 1, 1, 3, 40, 8, 0, 0, 0 };

    qk_norm_bwd_one(MEG_DTYPE_F32, MEG_DTYPE_F32, MEG_DTYPE_F32, MEG_DTYPE_BF16, s, false, false);
    qk_norm_bwd_one(MEG_DTYPE_F32, MEG_DTYPE_F32, MEG_DTYPE_F32, MEG_DTYPE_BF16, s, false, true);
}

const struct check_case cases_rope[] = {
    { "rope: types and shapes", rope },
    { "rope: interleaved pairs", rope_interleaved },
    { "qk_norm_fwd: shapes", qk_norm_fwd },
    { "qk_norm_fwd: types", qk_norm_fwd_types },
    { "qk_norm_fwd: each head has its own scale", qk_norm_fwd_scale },
    { "qk_norm_bwd: shapes", qk_norm_bwd },
    { "qk_norm_bwd: types", qk_norm_bwd_types },
    { "qk_norm_bwd: in place", qk_norm_bwd_in_place },
    { "qk_norm_bwd: more heads than threads", qk_norm_bwd_many },
    { "qk_norm_bwd: no rows", qk_norm_bwd_empty },
    { NULL, NULL },
};
