/* check_norm.c - cases of cuda/norm.cu and cuda/add.cu: norms and residual additions. */
#include "base/philox.h"
#include "check.h"

enum { TYPES = 4 };
static const enum meg_dtype dtypes[] = { MEG_DTYPE_F32, MEG_DTYPE_BF16, MEG_DTYPE_F16 };
enum { DTYPES = sizeof dtypes / sizeof *dtypes };
/*
 * Row lengths on both sides of the sizes of a vector and a warp, and of the limits of the kernels: 1024, 4096 and 8192.
 * Kernels use vectors if h and pad are multiples of 8.
 */
struct shape {
    int64_t n, h, pad;
};
static const struct shape shapes[] = {
    { 5, 1, 0 },   { 3, 7, 1 },   { 9, 8, 0 },    { 37, 64, 8 },  { 6, 250, 6 },  { 4, 256, 0 },  { 5, 264, 0 },
    { 7, 768, 0 }, { 3, 770, 1 }, { 6, 1024, 8 }, { 3, 1024, 4 }, { 2, 1032, 0 }, { 9, 2048, 0 }, { 5, 2055, 1 },
};
static const struct shape long_shapes[] = { { 2, 4096, 0 }, { 1, 4104, 0 }, { 2, 8192, 0 },
                                            { 1, 8184, 1 }, { 5, 8200, 0 }, { 2, 8195, 0 } };
enum { SHAPES = sizeof shapes / sizeof *shapes, LONG_SHAPES = sizeof long_shapes / sizeof *long_shapes };

static void *host_unless(bool is_absent, const struct twin *x)
{
    return is_absent ? NULL : x->host.p;
}

static void *dev_unless(bool is_absent, const struct twin *x)
{
    return is_absent ? NULL : x->dev.p;
}

/* Return rows with different variances and with means that are not 0. */
static struct twin rows_random(enum meg_dtype t, struct shape s)
{
    struct twin x = twin_random(t, s.n, s.h, s.pad);

    for (int64_t r = 0; r < s.n; r++)
        for (int64_t c = 0; c < s.h; c++)
            twin_set(&x, r, c, twin_get(&x, r, c) * (float)(1 + r % 3) + (float)(r % 4));
    twin_upload(&x);
    return x;
}

/* Remove the first column, so that rows begin at addresses that are not multiples of 16. */
static void shift(struct twin *x)
{
    const int64_t size = x->host.dtype == MEG_DTYPE_F32 ? 4 : 2;

    x->host.p = (char *)x->host.p + size;
    x->dev.p = (char *)x->dev.p + size;
    x->host.cols--;
    x->dev.cols--;
}

/* ---- norms ---- */

/* The operands of a norm and of its gradient. */
struct norm {
    enum meg_norm type;
    bool is_rms;
    struct twin x, y, w, b, mean, rstd, dy, dx, skip;
};

static struct norm norm_random(enum meg_norm type, struct check_mix mix, struct shape s)
{
    return (struct norm){
        type,
        meg_norm_is_rms(type),
        rows_random(mix.stream, s),
        twin_output(mix.branch, s.n, s.h, s.pad),
        twin_random(mix.branch, 1, s.h, 0),
        twin_random(mix.branch, 1, s.h, 0),
        twin_output(MEG_DTYPE_F32, 1, s.n, 0),
        twin_output(MEG_DTYPE_F32, 1, s.n, 0),
        twin_random(mix.branch, s.n, s.h, s.pad),
        twin_output(mix.stream, s.n, s.h, s.pad),
        twin_random(mix.stream, s.n, s.h, s.pad),
    };
}

/* Compare the results.  `tolerance` is that of mean and rstd, and depends on the rows from which they are computed. */
static void expect_norm(const struct norm *m, double tolerance)
{
    expect_near(&m->y, check_tolerance(m->y.host.dtype), "y");
    expect_near(&m->mean, tolerance, "mean"); /* NaN on both sides for RMSNorm */
    expect_near(&m->rstd, tolerance, "rstd");
}

static void compare_norm_fwd(const struct norm *m)
{
    MEG_CALL(cpu, NULL, norm_fwd, .type = m->type, .y = m->y.host, .mean = m->mean.host.p, .rstd = m->rstd.host.p,
             .x = m->x.host, .w = m->w.host.p, .b = host_unless(m->is_rms, &m->b), .eps = 1e-5f);
    MEG_CALL(gpu, stream, norm_fwd, .type = m->type, .y = m->y.dev, .mean = m->mean.dev.p, .rstd = m->rstd.dev.p,
             .x = m->x.dev, .w = m->w.dev.p, .b = dev_unless(m->is_rms, &m->b), .eps = 1e-5f);
    expect_norm(m, 1e-5);
}

/* Compare gradients; skip is absent, a matrix, or dx. */
enum skip { NO_SKIP, SKIP, SKIP_IS_DX };
static void compare_norm_bwd(struct norm *m, enum skip skip, enum meg_dtype grad, bool accumulate)
{
    const int64_t h = m->x.host.cols;
    const struct twin dw = accumulate ? twin_random(grad, 1, h, 0) : twin_output(grad, 1, h, 0);
    const struct twin db = accumulate ? twin_random(grad, 1, h, 0) : twin_output(grad, 1, h, 0);
    const struct twin *s = skip == SKIP_IS_DX ? &m->dx : &m->skip;

    MEG_CALL(cpu, NULL, norm_fwd, .type = m->type, .y = m->y.host, .mean = m->mean.host.p, .rstd = m->rstd.host.p,
             .x = m->x.host, .w = m->w.host.p, .b = host_unless(m->is_rms, &m->b), .eps = 1e-5f);
    twin_upload(&m->mean);
    twin_upload(&m->rstd);
    if (skip == SKIP_IS_DX)
        m->dx = m->skip;
    MEG_CALL(cpu, NULL, norm_bwd, .type = m->type, .dx = m->dx.host, .dw = dw.host.p, .db = host_unless(m->is_rms, &db),
             .grad = grad, .skip = skip ? s->host : meg_no_mat(), .dy = m->dy.host, .x = m->x.host, .w = m->w.host.p,
             .mean = m->mean.host.p, .rstd = m->rstd.host.p, .accumulate = accumulate);
    MEG_CALL(gpu, stream, norm_bwd, .type = m->type, .dx = m->dx.dev, .dw = dw.dev.p, .db = dev_unless(m->is_rms, &db),
             .grad = grad, .skip = skip ? s->dev : meg_no_mat(), .dy = m->dy.dev, .x = m->x.dev, .w = m->w.dev.p,
             .mean = m->mean.dev.p, .rstd = m->rstd.dev.p, .accumulate = accumulate);
    expect_near(&m->dx, check_tolerance(m->dx.host.dtype), "dx");
    expect_near(&dw, check_tolerance(grad), "dw");
    expect_near(&db, check_tolerance(grad), "db");
}

static void norm_fwd_shapes(void)
{
    for (int i = 0; i < SHAPES; i++)
        for (int type = 0; type < TYPES; type++) {
            const struct norm m = norm_random((enum meg_norm)type, check_mixes[(i + type) % CHECK_MIXES], shapes[i]);

            compare_norm_fwd(&m);
        }
}

static void norm_fwd_long(void)
{
    for (int i = 0; i < LONG_SHAPES; i++) {
        const struct norm m = norm_random((enum meg_norm)(i % TYPES), check_mixes[i % CHECK_MIXES], long_shapes[i]);

        compare_norm_fwd(&m);
    }
}

/*
 * Compare with more rows than a grid has blocks, so that a block processes several rows; some shapes have complete
 * vectors only.
 */
static void norm_fwd_steps(void)
{
    static const struct shape steps[] = { { 2200, 8, 0 }, { 1100, 9, 0 }, { 140, 4104, 0 }, { 300, 1025, 0 } };

    for (int i = 0; i < (int)(sizeof steps / sizeof *steps); i++) {
        const struct norm m = norm_random(MEG_NORM_LAYER, check_mixes[0], steps[i]);

        compare_norm_fwd(&m);
    }
}

static void norm_bwd_shapes(void)
{
    for (int i = 0; i < SHAPES; i++)
        for (int type = 0; type < TYPES; type++) {
            const int k = i + type;
            struct norm m = norm_random((enum meg_norm)type, check_mixes[k % CHECK_MIXES], shapes[i]);

            /* The gradient of a row of one element is 0, so rounding errors are all that would be compared. */
            compare_norm_bwd(&m, shapes[i].h == 1 ? SKIP : (enum skip)(k % 3), dtypes[k / 2 % DTYPES], k % 2);
        }
}

static void norm_bwd_long(void)
{
    for (int i = 0; i < LONG_SHAPES; i++) {
        struct norm m = norm_random((enum meg_norm)((i + 1) % TYPES), check_mixes[i % CHECK_MIXES], long_shapes[i]);

        compare_norm_bwd(&m, (enum skip)((i + 2) % 3), dtypes[i % DTYPES], i % 2);
    }
}

/* Compare with more rows than the blocks of a grid process at a time, so that a block processes several in turn. */
static void norm_bwd_steps(void)
{
    static const struct shape steps[] = {
        { 95, 24, 0 }, { 47, 300, 0 }, { 31, 1024, 0 }, { 13, 1040, 0 }, { 9, 8200, 0 }
    };

    for (int i = 0; i < (int)(sizeof steps / sizeof *steps); i++) {
        struct norm m =
            norm_random(i % 2 ? MEG_NORM_RMS : MEG_NORM_LAYER, check_mixes[(i + 1) % CHECK_MIXES], steps[i]);

        compare_norm_bwd(&m, SKIP, MEG_DTYPE_F32, false);
    }
}

/* Compare with combinations of types that only the kernels for `general` types support (cuda/row.h). */
static void norm_other_types(void)
{
    static const struct check_mix mixes[] = { { MEG_DTYPE_BF16, MEG_DTYPE_F32 },
                                              { MEG_DTYPE_F16, MEG_DTYPE_BF16 },
                                              { MEG_DTYPE_BF16, MEG_DTYPE_F16 } };

    for (int i = 0; i < (int)(sizeof mixes / sizeof *mixes); i++) {
        const struct shape s = { 5, 128, 0 };
        struct norm m = norm_random((enum meg_norm)i, mixes[i], s);

        m.skip = twin_random(dtypes[i], s.n, s.h, 0);
        compare_norm_fwd(&m);
        compare_norm_bwd(&m, SKIP, MEG_DTYPE_F32, false);
    }
}

static void norm_unaligned(void)
{
    for (int i = 0; i < 4; i++) {
        struct norm m = norm_random(MEG_NORM_LAYER, check_mixes[1 + i % 2], (struct shape){ 3, 257, 7 });
        struct twin *const shifted[] = { &m.x, &m.y, &m.w, &m.dy };

        /* Use 256 columns of all matrices; one of the matrices is not aligned. */
        for (int k = 0; k < 4; k++)
            if (k == i)
                shift(shifted[k]);
        m.x.host.cols = m.y.host.cols = m.dy.host.cols = m.dx.host.cols = m.skip.host.cols = 256;
        m.x.dev.cols = m.y.dev.cols = m.dy.dev.cols = m.dx.dev.cols = m.skip.dev.cols = 256;
        compare_norm_fwd(&m);
        compare_norm_bwd(&m, SKIP, MEG_DTYPE_F32, false);
    }
}

static void norm_empty(void)
{
    for (int accumulate = 0; accumulate < 2; accumulate++) {
        struct norm m = norm_random(MEG_NORM_LAYER, check_mixes[1], (struct shape){ 0, 40, 0 });

        compare_norm_fwd(&m);
        compare_norm_bwd(&m, SKIP, MEG_DTYPE_F32, accumulate);
    }
}

/* ---- residual additions ---- */

/* The same dropout parameters, with arrays in host memory and in device memory. */
struct drop {
    struct meg_drop host, dev;
};

/* Return dropout of n rows of b sequences. */
static struct drop drop_random(float p, int64_t n, int64_t b, int64_t unit0, bool has_positions)
{
    int64_t sample[16];
    int32_t position[64];
    struct twin_bytes samples, positions;
    struct meg_drop d = { p, (uint32_t)check_below(1 << 30), 3, MEG_DROP_MLP_OUT, unit0, 1000, b, NULL, NULL };
    struct drop drop;

    for (int64_t i = 0; i < b; i++)
        sample[i] = check_below((int64_t)1 << 40);
    for (int64_t t = 0; t * b < n; t++)
        position[t] = (int32_t)check_below(4096);
    samples = twin_bytes(sample, (size_t)b * sizeof *sample);
    positions = twin_bytes(position, (size_t)((n + b - 1) / b) * sizeof *position);
    drop.host = drop.dev = d;
    drop.host.sample = samples.host;
    drop.dev.sample = samples.dev;
    if (has_positions) {
        drop.host.position_of_row = positions.host;
        drop.dev.position_of_row = positions.dev;
    }
    return drop;
}

/* The properties in which a case differs from a plain addition. */
struct variant {
    float p;
    int64_t b, unit0;
    bool has_positions, has_bias, is_in_place;
};
static const struct variant variants[] = {
    { 0.0f, 1, 0, false, false, false }, { 0.0f, 1, 0, false, true, true },   { 0.1f, 1, 0, false, false, false },
    { 0.5f, 3, 64, true, true, false },  { 0.3f, 2, 13, false, true, true },  { 0.9f, 4, 7, true, false, false },
    { 1e-6f, 2, 0, false, true, false }, { 0.25f, 2, 4, false, false, true }, { 0.999999f, 1, 8, false, true, false },
};
enum { VARIANTS = sizeof variants / sizeof *variants };

static struct drop drop_of(const struct variant *v, int64_t n)
{
    return drop_random(v->p, n, v->b, v->unit0, v->has_positions);
}

static void compare_add_fwd(const struct variant *v, enum meg_dtype tz, enum meg_dtype tx, enum meg_dtype ty,
                            struct shape s)
{
    const struct twin x = twin_random(tx, s.n, s.h, s.pad), y = twin_random(ty, s.n, s.h, s.pad);
    const struct twin z = v->is_in_place ? x : twin_output(tz, s.n, s.h, s.pad), bias = twin_random(ty, 1, s.h, 0);
    const struct drop d = drop_of(v, s.n);
    const bool has_drop = v->p > 0;

    MEG_CALL(cpu, NULL, add_fwd, .z = z.host, .x = x.host, .y = y.host, .bias = host_unless(!v->has_bias, &bias),
             .drop = has_drop ? &d.host : NULL);
    MEG_CALL(gpu, stream, add_fwd, .z = z.dev, .x = x.dev, .y = y.dev, .bias = dev_unless(!v->has_bias, &bias),
             .drop = has_drop ? &d.dev : NULL);
    expect_near(&z, check_tolerance(z.host.dtype), "z");
}

static void add_fwd_shapes(void)
{
    for (int i = 0; i < SHAPES; i++)
        for (int k = 0; k < VARIANTS; k++) {
            const struct check_mix mix = check_mixes[(i + k) % CHECK_MIXES];

            compare_add_fwd(&variants[k], mix.stream, mix.stream, mix.branch, shapes[i]);
        }
}

static void add_fwd_all_types(void)
{
    for (int i = 0; i < DTYPES * DTYPES * DTYPES; i++)
        for (int k = 2; k < 4; k++)
            compare_add_fwd(&variants[k], dtypes[i % 3], dtypes[i / 3 % 3], dtypes[i / 9], (struct shape){ 4, 72, 0 });
}

/* Dropped elements are exactly 0, so if z is equal bit for bit, the dropout masks are equal. */
static void add_fwd_mask(void)
{
    for (int64_t unit0 = 0; unit0 < 17; unit0++) {
        const struct twin x = twin_random(MEG_DTYPE_F32, 6, 40, 0), z = twin_output(MEG_DTYPE_F32, 6, 40, 0);
        const struct drop d = drop_random(0.5f, 6, 2, unit0, unit0 % 2);
        struct twin zero = twin_output(MEG_DTYPE_F32, 6, 40, 0);

        for (int64_t i = 0; i < 6 * 40; i++)
            twin_set(&zero, i / 40, i % 40, 0.0f);
        twin_upload(&zero);
        MEG_CALL(cpu, NULL, add_fwd, .z = z.host, .x = zero.host, .y = x.host, .drop = &d.host);
        MEG_CALL(gpu, stream, add_fwd, .z = z.dev, .x = zero.dev, .y = x.dev, .drop = &d.dev);
        expect_equal(&z, "z");
    }
}

/* A unit is kept if its number is equal to the threshold: p is the number of one of the units 0 to 7 of a row. */
static void add_fwd_threshold(void)
{
    struct drop d = drop_random(0.5f, 1, 1, 0, false);
    uint32_t word[4];

    meg_philox_dropout(word, d.host.seed, 16 * (uint32_t)d.host.layer + (uint32_t)d.host.site, 0, (uint32_t)d.host.pos0,
                       d.host.sample[0]);
    for (int unit = 0; unit < 8; unit++) {
        const struct twin x = twin_random(MEG_DTYPE_F32, 1, 8, 0), y = twin_random(MEG_DTYPE_F32, 1, 8, 0);
        const struct twin z = twin_output(MEG_DTYPE_F32, 1, 8, 0);

        d.host.p = d.dev.p = (float)(word[unit / 2] >> unit % 2 * 16 & 0xffff) / 65536;
        MEG_CALL(cpu, NULL, add_fwd, .z = z.host, .x = x.host, .y = y.host, .drop = &d.host);
        MEG_CALL(gpu, stream, add_fwd, .z = z.dev, .x = x.dev, .y = y.dev, .drop = &d.dev);
        expect_near(&z, 1e-5, "z");
    }
}

static void compare_add_bwd(const struct variant *v, enum meg_dtype ty, enum meg_dtype tz, enum meg_dtype grad,
                            bool accumulate, struct shape s)
{
    const struct twin dz = twin_random(tz, s.n, s.h, s.pad);
    const struct twin dy = v->is_in_place ? dz : twin_output(ty, s.n, s.h, s.pad);
    const struct twin dbias = accumulate ? twin_random(grad, 1, s.h, 0) : twin_output(grad, 1, s.h, 0);
    const struct drop d = drop_of(v, s.n);

    MEG_CALL(cpu, NULL, add_bwd, .dy = dy.host, .dbias = host_unless(!v->has_bias, &dbias), .grad = grad, .dz = dz.host,
             .drop = &d.host, .accumulate = accumulate);
    MEG_CALL(gpu, stream, add_bwd, .dy = dy.dev, .dbias = dev_unless(!v->has_bias, &dbias), .grad = grad, .dz = dz.dev,
             .drop = &d.dev, .accumulate = accumulate);
    expect_equal(&dy, "dy");
    expect_near(&dbias, check_tolerance(grad), "dbias");
}

static void add_bwd_shapes(void)
{
    for (int i = 0; i < SHAPES; i++)
        for (int k = 0; k < VARIANTS; k++) {
            const struct check_mix mix = check_mixes[(i + k) % CHECK_MIXES];

            compare_add_bwd(&variants[k], mix.branch, mix.stream, dtypes[(i + k) % DTYPES], (i + k) / 2 % 2, shapes[i]);
        }
}

/* Compare with so many rows that a warp processes more than one batch of them, and a column has partial sums. */
static void add_bwd_many_rows(void)
{
    for (int k = 3; k < 5; k++)
        for (int64_t n = 62; n < 76; n += 5)
            compare_add_bwd(&variants[k], MEG_DTYPE_BF16, MEG_DTYPE_F32, MEG_DTYPE_F32, false,
                            (struct shape){ n * variants[k].b / 2, 264, 0 });
}

/* No position is read behind those of the rows, where memory of the test double cannot be accessed. */
static void add_bwd_positions(void)
{
    enum { ROWS = 5, MEMORY = 64 };
    const struct twin dz = twin_random(MEG_DTYPE_F32, ROWS, 24, 0), dy = twin_output(MEG_DTYPE_F32, ROWS, 24, 0);
    int32_t *const memory = gpu->alloc(MEMORY * sizeof *memory), *const position = memory + MEMORY - ROWS;
    struct drop d = drop_random(0.5f, ROWS, 1, 0, true);

    gpu->upload(stream, position, d.host.position_of_row, ROWS * sizeof *position);
    d.dev.position_of_row = position;
    MEG_CALL(cpu, NULL, add_bwd, .dy = dy.host, .grad = MEG_DTYPE_F32, .dz = dz.host, .drop = &d.host);
    MEG_CALL(gpu, stream, add_bwd, .dy = dy.dev, .grad = MEG_DTYPE_F32, .dz = dz.dev, .drop = &d.dev);
    expect_equal(&dy, "dy");
    gpu->release(memory);
}

static void add_bwd_other_types(void)
{
    for (int i = 0; i < DTYPES * DTYPES; i++)
        compare_add_bwd(&variants[3], dtypes[i % 3], dtypes[i / 3], MEG_DTYPE_F32, i % 2, (struct shape){ 5, 80, 0 });
}

static void add_empty(void)
{
    for (int k = 0; k < 4; k++) {
        compare_add_fwd(&variants[k], MEG_DTYPE_F32, MEG_DTYPE_F32, MEG_DTYPE_BF16, (struct shape){ 0, 24, 0 });
        compare_add_bwd(&variants[k], MEG_DTYPE_BF16, MEG_DTYPE_F32, MEG_DTYPE_F32, k % 2, (struct shape){ 0, 24, 0 });
    }
}

static void compare_add_norm(enum meg_norm type, const struct variant *v, struct check_mix mix, struct shape s)
{
    const struct norm m = norm_random(type, mix, s);
    const struct twin out = twin_random(mix.branch, s.n, s.h, s.pad), bias = twin_random(mix.branch, 1, s.h, 0);
    const struct twin z = v->is_in_place ? m.x : twin_output(mix.stream, s.n, s.h, s.pad);
    const struct drop d = drop_of(v, s.n);

    MEG_CALL(cpu, NULL, add_norm_fwd, .type = type, .z = z.host, .y = m.y.host, .mean = m.mean.host.p,
             .rstd = m.rstd.host.p, .x = m.x.host, .sublayer_out = out.host, .bias = host_unless(!v->has_bias, &bias),
             .drop = &d.host, .w = m.w.host.p, .b = host_unless(m.is_rms, &m.b), .eps = 1e-5f);
    MEG_CALL(gpu, stream, add_norm_fwd, .type = type, .z = z.dev, .y = m.y.dev, .mean = m.mean.dev.p,
             .rstd = m.rstd.dev.p, .x = m.x.dev, .sublayer_out = out.dev, .bias = dev_unless(!v->has_bias, &bias),
             .drop = &d.dev, .w = m.w.dev.p, .b = dev_unless(m.is_rms, &m.b), .eps = 1e-5f);
    expect_near(&z, check_tolerance(mix.stream), "z");
    expect_norm(&m, mix.stream == MEG_DTYPE_F32 ? 1e-5 : 2e-4); /* statistics of z, whose rounding can differ */
}

static void add_norm_shapes(void)
{
    for (int i = 0; i < SHAPES; i++)
        for (int k = 0; k < VARIANTS; k++)
            if (shapes[i].h > 1) /* y of one element depends only on w, b and a sign: see norm_bwd_shapes */
                compare_add_norm((enum meg_norm)(k % TYPES), &variants[k], check_mixes[(i + k) % CHECK_MIXES],
                                 shapes[i]);
}

static void add_norm_long(void)
{
    for (int i = 0; i < LONG_SHAPES; i++)
        compare_add_norm((enum meg_norm)(i % TYPES), &variants[1 + i], check_mixes[(i + 2) % CHECK_MIXES],
                         long_shapes[i]);
}

static void add_norm_steps(void)
{
    static const struct variant v = { 0.1f, 16, 0, false, true, true };

    compare_add_norm(MEG_NORM_LAYER, &v, check_mixes[3], (struct shape){ 140, 4104, 0 });
    compare_add_norm(MEG_NORM_RMS, &v, check_mixes[1], (struct shape){ 300, 1025, 0 });
}

/* With a post-norm residual and an f32 residual stream, x is the output of a norm. */
static void add_norm_post_norm(void)
{
    const struct shape s = { 3, 48, 0 };
    struct norm m = norm_random(MEG_NORM_LAYER, check_mixes[3], s);
    const struct twin x = twin_random(MEG_DTYPE_BF16, s.n, s.h, 0), out = twin_random(MEG_DTYPE_BF16, s.n, s.h, 0);

    MEG_CALL(cpu, NULL, add_norm_fwd, .type = m.type, .z = m.dx.host, .y = m.y.host, .mean = m.mean.host.p,
             .rstd = m.rstd.host.p, .x = x.host, .sublayer_out = out.host, .w = m.w.host.p, .b = m.b.host.p,
             .eps = 1e-5f);
    MEG_CALL(gpu, stream, add_norm_fwd, .type = m.type, .z = m.dx.dev, .y = m.y.dev, .mean = m.mean.dev.p,
             .rstd = m.rstd.dev.p, .x = x.dev, .sublayer_out = out.dev, .w = m.w.dev.p, .b = m.b.dev.p, .eps = 1e-5f);
    expect_near(&m.dx, 1e-5, "z");
    expect_norm(&m, 1e-5);
}

const struct check_case cases_norm[] = {
    { "norm_fwd: rows of all lengths", norm_fwd_shapes },
    { "norm_fwd: long rows", norm_fwd_long },
    { "norm_fwd: several rows per thread", norm_fwd_steps },
    { "norm_bwd: rows of all lengths", norm_bwd_shapes },
    { "norm_bwd: long rows", norm_bwd_long },
    { "norm_bwd: several rows per thread", norm_bwd_steps },
    { "norm: unusual combinations of types", norm_other_types },
    { "norm: unaligned matrices", norm_unaligned },
    { "norm: no rows", norm_empty },
    { "add_fwd: rows of all lengths", add_fwd_shapes },
    { "add_fwd: all combinations of types", add_fwd_all_types },
    { "add_fwd: the dropout mask is that of the CPU", add_fwd_mask },
    { "add_fwd: numbers equal to the threshold of dropout", add_fwd_threshold },
    { "add_bwd: rows of all lengths", add_bwd_shapes },
    { "add_bwd: many rows", add_bwd_many_rows },
    { "add_bwd: positions at the end of memory", add_bwd_positions },
    { "add_bwd: unusual combinations of types", add_bwd_other_types },
    { "add: no rows", add_empty },
    { "add_norm_fwd: rows of all lengths", add_norm_shapes },
    { "add_norm_fwd: long rows", add_norm_long },
    { "add_norm_fwd: several rows per thread", add_norm_steps },
    { "add_norm_fwd: residual from the output of a norm", add_norm_post_norm },
    { NULL, NULL },
};
