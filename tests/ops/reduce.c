/* reduce.c - cases of sumsq, sumsq_ranges, weighted_sum and count_zeros: sums over arrays. */
#include "ops.h"

/*
 * Lengths on both sides of the multiples of a vector and of the vectors that a block loads at once, and one for which
 * blocks iterate.
 */
static const int64_t lengths[] = { 0, 1, 7, 8, 9, 257, 1023, 1024, 1025, 2048, 8191, 8192, 8193, 20000, 20011, 20012 };
enum { LONGEST = 20011 };

/* PLAIN.  ZEROS: elements that are 0 or -0.  The others: the squares of elements are above the range of f32. */
enum { PLAIN, ZEROS, LARGE, WITH_INF, WITH_NAN };

static void fill(struct op_call *c)
{
    struct op_tensor *const x = op_find(c, "x");

    for (int64_t i = 0; x->v && i < x->numel && c->variant >= LARGE; i++)
        x->v[i] = 3e38;
    for (int64_t i = 0; x->v && i < x->numel && c->variant == ZEROS; i++)
        if (op_below(3) == 0)
            x->v[i] = i % 2 ? 0.0 : -0.0;
    if (c->variant >= WITH_INF)
        x->v[x->numel - 1] = -INFINITY;
    if (c->variant == WITH_NAN)
        x->v[x->numel / 2] = NAN;
}

/* Add *scale * the sum of x[i] * y[i] over [begin, end) to element k of out; NULL means 1. */
static void add_sum(struct op_tensor *out, int64_t k, const double *x, const double *y, int64_t begin, int64_t end,
                    double scale, double tol)
{
    double sum = 0, size = 0;

    for (int64_t i = begin; i < end; i++) {
        sum += x[i] * (y ? y[i] : 1);
        size += fabs(x[i] * (y ? y[i] : 1));
    }
    out->want[k] = out->v[k] + scale * sum;
    out->tol[k] = tol * (fabs(out->v[k]) + fabs(scale) * size);
}

/* ---- sumsq ---- */

static void sumsq_ref(struct op_call *c)
{
    const double *x = op_in(c, "x");

    add_sum(op_find(c, "out"), 0, x, x, 0, op_size(c, "n"), 1, 1e-13);
}

static void sumsq_one(int variant, enum meg_dtype t, int64_t n, int64_t first)
{
    OP_CASE(sumsq, variant, .x = OFFSET((size_t)first * meg_dtype_size(t)), .type = t, .n = n);
}

static void sumsq_lengths(void)
{
    for (int t = 0; t < OP_FLOATS; t++)
        for (int64_t i = 0; i < (int64_t)LEN(lengths); i++)
            sumsq_one(PLAIN, (enum meg_dtype)t, lengths[i], i % 2);
}

/* The sum is finite even if squares of elements overflow f32, but not if an element is infinite or NaN. */
static void sumsq_overflow(void)
{
    sumsq_one(LARGE, MEG_DTYPE_F32, 100, 0);
    for (int variant = LARGE; variant <= WITH_NAN; variant++)
        sumsq_one(variant, MEG_DTYPE_F32, 3000, 0);
    for (int t = 0; t < OP_FLOATS; t++)
        for (int64_t n = 4999; n < 20000; n += 4999) {
            sumsq_one(WITH_INF, (enum meg_dtype)t, n, 0);
            sumsq_one(WITH_NAN, (enum meg_dtype)t, n, 0);
        }
}

static double f64_cuda(const struct op_call *c, const struct op_tensor *t)
{
    (void)c, (void)t;
    return 1e-13;
}

static void sumsq_bench(void)
{
    sumsq_one(PLAIN, MEG_DTYPE_BF16, (int64_t)16384 * 50304, 0);
}

OP_TEST(sumsq, .fill = fill, .ref = sumsq_ref, .cuda = f64_cuda, .bench = sumsq_bench,
        .group = { { "lengths, types and unaligned arrays", sumsq_lengths },
                   { "squares above the range of f32, infinity and NaN", sumsq_overflow } });

/* ---- sumsq_ranges ---- */

/* Ranges that are empty, or shorter or longer than the part that a block sums; some of them are not aligned. */
static const struct meg_range ranges[] = { { 5, 5 },    { 0, 1 },     { 3, 14 },   { 8, 511 },     { 0, 513 },
                                           { 9, 8201 }, { 16, 8208 }, { 3, 1500 }, { 100, 20000 }, { 0, LONGEST } };

static void ranges_fill(struct op_call *c)
{
    const struct op_tensor *t = op_find(c, "range");

    for (int64_t i = 0; i < t->size[0]; i++) {
        t->v[2 * i] = (double)ranges[i].begin;
        t->v[2 * i + 1] = (double)ranges[i].end;
    }
}

static void ranges_ref(struct op_call *c)
{
    const double *x = op_in(c, "x");
    struct op_tensor *out = op_find(c, "out");

    for (int64_t i = 0; i < out->numel; i++)
        add_sum(out, i, x, x, ranges[i].begin, ranges[i].end, 1, 1e-13);
}

static void ranges_parts(const struct meg_ops *op, struct meg_stream *st, const void *args)
{
    const struct meg_sumsq_ranges_args *a = args;

    for (int i = 0; i < a->nranges; i++)
        MEG_CALL(op, st, sumsq, .out = a->out + i, .x = meg_element(a->x, a->range[i].begin, a->type), .type = a->type,
                 .n = a->range[i].end - a->range[i].begin);
}

static void ranges_types(void)
{
    for (int t = 0; t < OP_FLOATS; t++)
        for (int n = 0; n <= (int)LEN(ranges); n += (int)LEN(ranges))
            OP_CASE(sumsq_ranges, PLAIN, .x = ON, .type = (enum meg_dtype)t, .nranges = n);
}

/* A range is two i64; the row does not describe x, of which the ranges are parts. */
OP_TEST(sumsq_ranges, .fill = ranges_fill, .ref = ranges_ref, .parts = ranges_parts, .same = "out", .cuda = f64_cuda,
        .extra = { { "range", offsetof(struct meg_sumsq_ranges_args, range), MEG_DTYPE_I64, "nranges 2" },
                   { "x", offsetof(struct meg_sumsq_ranges_args, x), MEG_DTYPES, "20011" } },
        .group = { { "ranges of all lengths", ranges_types } });

static double equal_cuda(const struct op_call *c, const struct op_tensor *t)
{
    (void)c, (void)t;
    return 0;
}

/* ---- weighted_sum ---- */

/* All sums of products are exact in f64, in any order, but not in f32. */
static void weighted_fill(struct op_call *c)
{
    for (int i = 0; i < c->n; i++)
        for (int64_t k = 0; k < c->tensor[i].numel; k++)
            c->tensor[i].v[k] = ldexp(rint(ldexp(c->tensor[i].v[k], i == 0 ? 20 : 15)), i == 0 ? -20 : -15);
    fill(c);
}

static void weighted_ref(struct op_call *c)
{
    const double *scale = op_in(c, "scale");

    add_sum(op_find(c, "out"), 0, op_in(c, "x"), op_in(c, "weight"), 0, op_size(c, "n"), scale ? *scale : 1, 0);
}

static void weighted_lengths(void)
{
    for (size_t i = 0; i < LEN(lengths); i++)
        for (int k = 0; k < 4; k++)
            OP_CASE(weighted_sum, PLAIN, .weight = k & 1 ? ON : NULL, .n = lengths[i], .scale = k & 2 ? ON : NULL);
    OP_CASE(weighted_sum, WITH_NAN, .weight = ON, .n = 4);
}

OP_TEST(weighted_sum, .fill = weighted_fill, .ref = weighted_ref, .cuda = equal_cuda,
        .group = { { "lengths, with and without weights and scale", weighted_lengths } });

/* ---- count_zeros ---- */

static void zeros_ref(struct op_call *c)
{
    const double *x = op_in(c, "x");

    for (int64_t i = 0; i < op_size(c, "n"); i++)
        op_find(c, "out")->want[0] += x[i] == 0;
}

static void zeros_lengths(void)
{
    for (int t = 0; t < OP_FLOATS; t++)
        for (int64_t i = 0; i < (int64_t)LEN(lengths); i++)
            OP_CASE(count_zeros, ZEROS, .x = OFFSET((size_t)(i % 2) * meg_dtype_size((enum meg_dtype)t)),
                    .type = (enum meg_dtype)t, .n = lengths[i]);
}

OP_TEST(count_zeros, .fill = fill, .ref = zeros_ref, .cuda = equal_cuda,
        .group = { { "lengths, types and unaligned arrays", zeros_lengths } });
