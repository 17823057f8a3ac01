/* add.c - cases of add_fwd, add_bwd and add_norm_fwd: residual additions with bias and dropout. */
#include <stdlib.h>
#include "base/mem.h"
#include "base/philox.h"
#include "norm.h"

static const struct norm_shape small_shapes[] = {
    { 3, 1, 1 }, { 6, 3, 2 }, { 21, 33, 0 }, { 210, 130, 3 }, { 27, 768, 0 }
};

/* The properties in which a case differs from a plain addition. */
struct option {
    float p;
    int64_t b, unit0;
    bool has_positions, has_bias;
};
static const struct option options[] = {
    { 0.0f, 1, 0, false, false }, { 0.0f, 1, 0, false, true },   { 0.1f, 1, 0, false, false },
    { 0.5f, 3, 64, true, true },  { 0.3f, 2, 13, false, true },  { 0.9f, 4, 7, true, false },
    { 1e-6f, 2, 0, false, true }, { 0.25f, 2, 4, false, false }, { 0.999999f, 1, 8, false, true },
};
static const float rates[] = { 0.0f, 0.1f, 0.5f };

static struct meg_drop drop_of(const struct option *o)
{
    return (struct meg_drop){ o->p, (uint32_t)op_below(1 << 30), 3, MEG_DROP_MLP_OUT, o->unit0, 1000, o->b,
                              ON,   o->has_positions ? ON : NULL };
}

/* Variants: an input that is NaN or infinite in row 2; a sample whose units are known. */
enum { PLAIN, WITH_NAN, WITH_INF, SAMPLE_5 };

static void fill_special(struct op_call *c, const char *name)
{
    const int64_t h = op_size(c, "h");

    for (int64_t k = 0; (c->variant == WITH_NAN || c->variant == WITH_INF) && k < h; k++)
        op_in(c, name)[2 * h + k] = c->variant == WITH_NAN ? NAN : INFINITY;
    if (c->variant == SAMPLE_5)
        op_in(c, "drop.sample")[0] = 5;
}

/* ---- add_fwd ---- */

static void add_fwd_fill(struct op_call *c)
{
    fill_special(c, "y");
}

/* Compute z = x + dropout(y + bias) of element k of row r.  The error of a factor above 1 is proportional to it. */
static void add_one(struct op_call *c, const struct meg_drop *d, const char *sublayer, int64_t r, int64_t k)
{
    const int64_t i = r * op_size(c, "h") + k;
    const double *bias = op_in(c, "bias"), f = op_drop_factor(c, d, r, k);
    struct op_tensor *z = op_find(c, "z");

    z->want[i] = op_in(c, "x")[i] + f * (op_in(c, sublayer)[i] + (bias ? bias[k] : 0));
    z->tol[i] = 8 * EPS * fmax(fmax(1, f / 2), fabs(op_in(c, "x")[i]));
}

static void add_fwd_ref(struct op_call *c)
{
    const int64_t n = op_size(c, "n"), h = op_size(c, "h");

    for (int64_t i = 0; i < n * h; i++)
        add_one(c, ((const struct meg_add_fwd_args *)c->args)->drop, "y", i / h, i % h);
}

static void add_fwd_one(int variant, const struct meg_drop *d, bool has_bias, enum meg_dtype tz, enum meg_dtype tx,
                        enum meg_dtype ty, struct norm_shape s)
{
    OP_CASE(add_fwd, variant, .z = op_mat(tz, s.n, s.h, s.pad), .x = op_mat(tx, s.n, s.h, s.pad),
            .y = op_mat(ty, s.n, s.h, s.pad), .bias = has_bias ? ON : NULL, .drop = d);
}

/* Without bias, with and without dropout. */
static void add_fwd_types(void)
{
    for (size_t i = 0; i < LEN(small_shapes); i++)
        for (size_t p = 0; p < LEN(rates); p++)
            for (int k = 0; k < 2 * OP_MIXES; k++) {
                const struct op_mix t = op_mixes[k / 2];
                const struct meg_drop d = { rates[p], 99, 2, MEG_DROP_MLP_OUT, 13, 40, 3, ON, NULL };

                add_fwd_one(PLAIN, &d, k % 2, t.stream, t.stream, t.branch, small_shapes[i]);
            }
}

static void add_fwd_shapes(void)
{
    for (size_t i = 0; i < LEN(norm_shapes); i++)
        for (size_t k = 0; k < LEN(options); k++) {
            const struct op_mix t = op_mixes[(i + k) % OP_MIXES];
            const struct meg_drop d = drop_of(&options[k]);

            add_fwd_one(PLAIN, d.p > 0 ? &d : NULL, options[k].has_bias, t.stream, t.stream, t.branch, norm_shapes[i]);
        }
}

static void add_fwd_all_types(void)
{
    for (int i = 0; i < OP_FLOATS * OP_FLOATS * OP_FLOATS; i++)
        for (int k = 2; k < 4; k++) {
            const struct meg_drop d = drop_of(&options[k]);

            add_fwd_one(PLAIN, &d, options[k].has_bias, (enum meg_dtype)(i % 3), (enum meg_dtype)(i / 3 % 3),
                        (enum meg_dtype)(i / 9), (struct norm_shape){ 4, 72, 0 });
        }
}

/* The mask of a shard that begins at any column. */
static void add_fwd_mask(void)
{
    for (int64_t unit0 = 0; unit0 < 17; unit0++) {
        const struct option o = { 0.5f, 2, unit0, unit0 % 2, false };
        const struct meg_drop d = drop_of(&o);

        add_fwd_one(PLAIN, &d, false, MEG_DTYPE_F32, MEG_DTYPE_F32, MEG_DTYPE_F32, (struct norm_shape){ 6, 40, 0 });
    }
}

/* A unit is kept if its number is equal to the threshold: p is the number of one of the units 0 to 7 of a row. */
static void add_fwd_threshold(void)
{
    struct meg_drop d = { .seed = 77, .layer = 3, .site = MEG_DROP_MLP_OUT, .pos0 = 1000, .b = 1, .sample = ON };
    uint32_t word[4];

    meg_philox_dropout(word, d.seed, 16 * (uint32_t)d.layer + (uint32_t)d.site, 0, (uint32_t)d.pos0, 5);
    for (int unit = 0; unit < 8; unit++) {
        d.p = (float)(word[unit / 2] >> unit % 2 * 16 & 0xffff) / 65536;
        add_fwd_one(SAMPLE_5, &d, false, MEG_DTYPE_F32, MEG_DTYPE_F32, MEG_DTYPE_F32, (struct norm_shape){ 1, 8, 0 });
    }
}

/* The sum is not finite even where dropout multiplies by 0. */
static void add_fwd_not_finite(void)
{
    const struct meg_drop d = { 0.9f, 7, 1, MEG_DROP_ATTN_OUT, 0, 0, 1, ON, NULL };

    for (int i = 0; i < 2 * OP_MIXES; i++)
        add_fwd_one(i % 2 ? WITH_NAN : WITH_INF, &d, false, op_mixes[i / 2].stream, op_mixes[i / 2].stream,
                    op_mixes[i / 2].branch, (struct norm_shape){ 5, 50, 0 });
}

static void add_fwd_empty(void)
{
    for (int k = 0; k < 4; k++) {
        const struct meg_drop d = drop_of(&options[k]);

        add_fwd_one(PLAIN, &d, options[k].has_bias, MEG_DTYPE_F32, MEG_DTYPE_F32, MEG_DTYPE_BF16,
                    (struct norm_shape){ 0, 24, 0 });
    }
}

static void add_fwd_bench(void)
{
    const struct meg_drop d = { .p = 0.1f, .seed = 1, .b = 16, .sample = ON };

    for (size_t i = 0; i < LEN(norm_bench_shapes); i++)
        add_fwd_one(PLAIN, &d, true, MEG_DTYPE_BF16, MEG_DTYPE_BF16, MEG_DTYPE_BF16, norm_bench_shapes[i]);
}

OP_TEST(add_fwd, .fill = add_fwd_fill, .ref = add_fwd_ref, .bench = add_fwd_bench,
        .group = { { "types", add_fwd_types, .is_cpu_only = true },
                   { "rows of all lengths", add_fwd_shapes },
                   { "all combinations of types", add_fwd_all_types },
                   { "the dropout mask", add_fwd_mask },
                   { "numbers equal to the threshold of dropout", add_fwd_threshold },
                   { "NaN and infinity", add_fwd_not_finite },
                   { "no rows", add_fwd_empty } });

/* ---- add_bwd ---- */

/* dbias is the sum of the values of dy after rounding. */
static void add_bwd_ref(struct op_call *c)
{
    const struct meg_add_bwd_args *a = c->args;
    const int64_t n = op_size(c, "n"), h = op_size(c, "h");
    const double *dz = op_in(c, "dz");
    struct op_tensor *const dy = op_find(c, "dy"), *dbias = op_find(c, "dbias");

    for (int64_t k = 0; k < h; k++) {
        double sum = 0;

        for (int64_t r = 0; r < n; r++) {
            const double f = op_drop_factor(c, a->drop, r, k);
            const int64_t i = r * h + k;

            dy->want[i] = (double)((float)dz[i] * (float)f);
            dy->tol[i] = dy->dtype == MEG_DTYPE_F32 ? 0 : EPS * f; /* in f32, exactly the product */
            sum += op_rounded(dy->dtype, dy->want[i]);
        }
        if (dbias) {
            dbias->want[k] = sum;
            dbias->tol[k] = (4 + 2 * sqrt((double)n)) * EPS * 2 * (double)n;
        }
    }
}

static void add_bwd_one(const struct meg_drop *d, bool has_bias, enum meg_dtype ty, enum meg_dtype tz,
                        enum meg_dtype grad, bool accumulate, struct norm_shape s)
{
    OP_CASE(add_bwd, PLAIN, .dy = op_mat(ty, s.n, s.h, s.pad), .dbias = has_bias ? ON : NULL, .grad = grad,
            .dz = op_mat(tz, s.n, s.h, s.pad), .drop = d, .accumulate = accumulate);
}

static void add_bwd_types(void)
{
    for (size_t i = 0; i < LEN(small_shapes); i++)
        for (size_t p = 0; p < LEN(rates); p++)
            for (int k = 0; k < 2 * OP_MIXES; k++) {
                const struct op_mix t = op_mixes[k / 2];
                const struct meg_drop d = { rates[p], 99, 2, MEG_DROP_MLP_OUT, 13, 40, 3, ON, NULL };

                add_bwd_one(&d, true, t.branch, t.stream, t.branch, k % 2, small_shapes[i]);
            }
}

static void add_bwd_shapes(void)
{
    for (size_t i = 0; i < LEN(norm_shapes); i++)
        for (size_t k = 0; k < LEN(options); k++) {
            const struct op_mix t = op_mixes[(i + k) % OP_MIXES];
            const struct meg_drop d = drop_of(&options[k]);

            add_bwd_one(&d, options[k].has_bias, t.branch, t.stream, (enum meg_dtype)((i + k) % OP_FLOATS),
                        (i + k) / 2 % 2, norm_shapes[i]);
        }
}

/* A warp processes more than one batch of rows, and a column has partial sums. */
static void add_bwd_many_rows(void)
{
    for (int k = 3; k < 5; k++)
        for (int64_t n = 62; n < 76; n += 5) {
            const struct meg_drop d = drop_of(&options[k]);

            add_bwd_one(&d, options[k].has_bias, MEG_DTYPE_BF16, MEG_DTYPE_F32, MEG_DTYPE_F32, false,
                        (struct norm_shape){ n * options[k].b / 2, 264, 0 });
        }
}

static void add_bwd_other(void)
{
    for (int i = 0; i < OP_FLOATS * OP_FLOATS; i++) {
        const struct meg_drop d = drop_of(&options[3]);

        add_bwd_one(&d, true, (enum meg_dtype)(i % 3), (enum meg_dtype)(i / 3), MEG_DTYPE_F32, i % 2,
                    (struct norm_shape){ 5, 80, 0 });
    }
    for (int k = 0; k < 4; k++) {
        const struct meg_drop d = drop_of(&options[k]);

        add_bwd_one(&d, options[k].has_bias, MEG_DTYPE_BF16, MEG_DTYPE_F32, MEG_DTYPE_F32, k % 2,
                    (struct norm_shape){ 0, 24, 0 });
    }
}

/* No position is read behind those of the rows: there are 5, each for one row. */
static void add_bwd_positions(void)
{
    const struct option o = { 0.5f, 1, 0, true, false };
    const struct meg_drop d = drop_of(&o);

    add_bwd_one(&d, false, MEG_DTYPE_F32, MEG_DTYPE_F32, MEG_DTYPE_F32, false, (struct norm_shape){ 5, 24, 0 });
}

/* With and without dbias. */
static void add_bwd_bench(void)
{
    const struct meg_drop d = { .p = 0.1f, .seed = 1, .b = 16, .sample = ON };

    for (size_t i = 0; i < LEN(norm_bench_shapes); i++)
        for (int k = 0; k < 2; k++)
            add_bwd_one(&d, k == 0, MEG_DTYPE_BF16, MEG_DTYPE_BF16, MEG_DTYPE_F32, k == 0, norm_bench_shapes[i]);
}

/* dy is equal because dropped elements are exactly 0. */
static double add_bwd_cuda(const struct op_call *c, const struct op_tensor *t)
{
    (void)c;
    return strcmp(t->name, "dy") == 0 ? 0 : op_tolerance(t->dtype);
}

OP_TEST(add_bwd, .ref = add_bwd_ref, .grad_of = &op_test_add_fwd, .added = "dbias", .cuda = add_bwd_cuda,
        .bench = add_bwd_bench,
        .group = { { "types", add_bwd_types, .is_cpu_only = true },
                   { "rows of all lengths", add_bwd_shapes },
                   { "many rows", add_bwd_many_rows },
                   { "positions at the end of memory", add_bwd_positions },
                   { "other types, no rows", add_bwd_other } });

/* ---- add_norm_fwd ---- */

/* The norm is that of z after rounding.  Where the last bits of the sum decide how it is rounded, a row has slack. */
static void add_norm_fwd_ref(struct op_call *c)
{
    const struct meg_add_norm_fwd_args *a = c->args;
    const int64_t n = op_size(c, "n"), h = op_size(c, "h");
    struct op_tensor *const z = op_find(c, "z"), *y = op_find(c, "y"), *rstd = op_find(c, "rstd");
    struct op_tensor *const mean = op_find(c, "mean");
    double *const rounded = meg_new((size_t)(n * h) * sizeof *rounded), *slack = meg_new((size_t)n * sizeof *slack);

    for (int64_t i = 0; i < n * h; i++) {
        add_one(c, a->drop, "sublayer_out", i / h, i % h);
        rounded[i] = op_rounded(z->dtype, z->want[i]);
        if (z->dtype != MEG_DTYPE_F32)
            slack[i / h] = fmax(slack[i / h], op_rounded(z->dtype, z->want[i] + z->tol[i]) -
                                                  op_rounded(z->dtype, z->want[i] - z->tol[i]));
    }
    norm_ref(c, a->type, rounded);
    for (int64_t r = 0; r < n; r++) {
        mean->tol[r] += slack[r];
        rstd->tol[r] += slack[r] * rstd->want[r] * rstd->want[r];
        for (int64_t k = 0; k < h; k++)
            y->tol[r * h + k] += slack[r] * 4 * rstd->want[r] * (1 + fabs(y->want[r * h + k]));
    }
    free(rounded);
    free(slack);
}

static void add_norm_parts(const struct meg_ops *op, struct meg_stream *st, const void *args)
{
    const struct meg_add_norm_fwd_args *a = args;

    MEG_CALL(op, st, add_fwd, .z = a->z, .x = a->x, .y = a->sublayer_out, .bias = a->bias, .drop = a->drop);
    MEG_CALL(op, st, norm_fwd, .type = a->type, .y = a->y, .mean = a->mean, .rstd = a->rstd, .x = a->z, .w = a->w,
             .b = a->b, .eps = a->eps);
}

static void add_norm_one(int type, const struct option *o, struct op_mix t, struct norm_shape s)
{
    const struct norm_type *norm = &norm_types[type];
    const struct meg_drop d = drop_of(o);

    OP_CASE(add_norm_fwd, PLAIN, .type = norm->type, .z = op_mat(t.stream, s.n, s.h, s.pad),
            .y = op_mat(t.branch, s.n, s.h, s.pad), .mean = ON, .x = op_mat(t.stream, s.n, s.h, s.pad),
            .sublayer_out = op_mat(t.branch, s.n, s.h, s.pad), .bias = o->has_bias ? ON : NULL, .drop = &d,
            .w = norm->w, .b = norm->b, .eps = NORM_EPS);
}

static void add_norm_types(void)
{
    static const struct option o = { 0.2f, 1, 0, false, true };

    for (int k = 0; k < NORM_TYPES * OP_MIXES; k++)
        add_norm_one((int)(k % NORM_TYPES), &o, op_mixes[k / NORM_TYPES], (struct norm_shape){ 11, 50, 0 });
}

static void add_norm_shapes(void)
{
    for (size_t i = 1; i < LEN(norm_shapes); i++) /* y of one element depends only on w, b and a sign */
        for (size_t k = 0; k < LEN(options); k++)
            add_norm_one((int)(k % NORM_TYPES), &options[k], op_mixes[(i + k) % OP_MIXES], norm_shapes[i]);
}

static void add_norm_long(void)
{
    for (size_t i = 0; i < LEN(norm_long_shapes); i++)
        add_norm_one((int)(i % NORM_TYPES), &options[1 + i], op_mixes[(i + 2) % OP_MIXES], norm_long_shapes[i]);
}

static void add_norm_many_rows(void)
{
    static const struct option o = { 0.1f, 16, 0, false, true };

    add_norm_one(MEG_NORM_LAYER, &o, op_mixes[3], (struct norm_shape){ 140, 4104, 0 });
    add_norm_one(MEG_NORM_RMS, &o, op_mixes[1], (struct norm_shape){ 300, 1025, 0 });
}

/* With a post-norm residual and an f32 residual stream, x is the output of a norm. */
static void add_norm_post_norm(void)
{
    OP_CASE(add_norm_fwd, PLAIN, .type = MEG_NORM_LAYER, .z = op_mat(MEG_DTYPE_F32, 3, 48, 0),
            .y = op_mat(MEG_DTYPE_BF16, 3, 48, 0), .mean = ON, .x = op_mat(MEG_DTYPE_BF16, 3, 48, 0),
            .sublayer_out = op_mat(MEG_DTYPE_BF16, 3, 48, 0), .w = ON, .b = ON, .eps = NORM_EPS);
}

static void add_norm_bench(void)
{
    static const struct option o = { 0, 1, 0, false, true };

    for (size_t i = 0; i < LEN(norm_bench_shapes); i++)
        add_norm_one(MEG_NORM_LAYER, &o, op_mixes[1], norm_bench_shapes[i]);
}

/* Statistics are those of z, whose rounding can differ. */
static double add_norm_cuda(const struct op_call *c, const struct op_tensor *t)
{
    const bool is_statistic = t->ndims == 1;

    return is_statistic && c->tensor[0].dtype != MEG_DTYPE_F32 ? 2e-4 : op_tolerance(t->dtype);
}

OP_TEST(add_norm_fwd, .fill = norm_fill, .ref = add_norm_fwd_ref, .parts = add_norm_parts, .same = "z y mean rstd",
        .cuda = add_norm_cuda, .bench = add_norm_bench,
        .group = { { "types", add_norm_types },
                   { "rows of all lengths", add_norm_shapes },
                   { "long rows", add_norm_long },
                   { "many rows", add_norm_many_rows },
                   { "residual from the output of a norm", add_norm_post_norm } });
