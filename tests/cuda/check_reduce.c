/* check_reduce.c - cases of cuda/reduce.cu: sums over arrays, and column sums. */
#include <string.h>
#include "check.h"
#include "cuda/internal.h"

static const enum meg_dtype types[] = { MEG_DTYPE_F32, MEG_DTYPE_BF16, MEG_DTYPE_F16 };
enum { TYPES = sizeof types / sizeof *types };

/*
 * Lengths on both sides of the multiples of a vector and of the vectors that a block loads at once, and one for which
 * blocks iterate.
 */
static const int64_t lengths[] = { 0, 1, 7, 8, 9, 257, 2048, 8191, 8192, 8193, 20011 };
enum { LENGTHS = sizeof lengths / sizeof *lengths, LONGEST = 20011 };

/* Call sumsq of both backends on elements [first, first + n) of x, and compare. */
static void compare_sumsq(const struct twin *x, int64_t first, int64_t n)
{
    const struct twin_bytes out = twin_bytes(&(double){ 0.5 }, sizeof(double));
    const enum meg_dtype t = x->host.dtype;

    for (int i = 0; i < 2; i++) {
        MEG_CALL(cpu, NULL, sumsq, .out = out.host, .x = meg_element(x->host.p, first, t), .type = t, .n = n);
        MEG_CALL(gpu, stream, sumsq, .out = out.dev, .x = meg_element(x->dev.p, first, t), .type = t, .n = n);
    }
    expect_near_f64(&out, 1e-13, "sum");
}

static void sumsq_lengths(void)
{
    for (int k = 0; k < TYPES; k++) {
        const struct twin x = twin_random(types[k], 1, LONGEST + 1, 0);

        for (int i = 0; i < LENGTHS; i++)
            compare_sumsq(&x, i % 2, lengths[i]);
        compare_sumsq(&x, 1, LONGEST);
    }
}

/* The sum is finite even if squares of elements overflow f32, but not if an element is infinite or NaN. */
static void sumsq_overflow(void)
{
    struct twin x = twin_random(MEG_DTYPE_F32, 1, 3000, 0);

    for (int64_t i = 0; i < 3000; i++)
        twin_set(&x, 0, i, 3e38f);
    twin_upload(&x);
    compare_sumsq(&x, 0, 3000);
    twin_set(&x, 0, 2999, -INFINITY);
    twin_upload(&x);
    compare_sumsq(&x, 0, 3000);
    twin_set(&x, 0, 17, NAN);
    twin_upload(&x);
    compare_sumsq(&x, 0, 3000);
}

/* Sum ranges that are empty, or shorter or longer than the part that a block sums; some of them are not aligned. */
static void sumsq_ranges(void)
{
    static const struct meg_range ranges[] = { { 5, 5 },   { 0, 1 },    { 3, 14 },         { 8, 511 },
                                               { 0, 513 }, { 9, 8201 }, { 16, 16 + 8192 }, { 0, LONGEST } };
    enum { RANGES = sizeof ranges / sizeof *ranges };
    const struct twin_bytes range = twin_bytes(ranges, sizeof ranges);

    for (int k = 0; k < TYPES; k++) {
        const struct twin x = twin_random(types[k], 1, LONGEST, 0);
        const double sums[RANGES] = { 1, 2, 3, 4, 5, 6, 7, 8 };
        const struct twin_bytes out = twin_bytes(sums, sizeof sums);

        for (int i = 0; i < 2; i++) {
            MEG_CALL(cpu, NULL, sumsq_ranges, .out = out.host, .x = x.host.p, .type = types[k], .range = range.host,
                     .nranges = RANGES);
            MEG_CALL(gpu, stream, sumsq_ranges, .out = out.dev, .x = x.dev.p, .type = types[k], .range = range.dev,
                     .nranges = RANGES);
        }
        MEG_CALL(gpu, stream, sumsq_ranges, .out = out.dev, .x = x.dev.p, .type = types[k], .range = range.dev);
        expect_near_f64(&out, 1e-13, "sums");
    }
}

static void count_zeros(void)
{
    for (int k = 0; k < TYPES; k++) {
        struct twin x = twin_random(types[k], 1, LONGEST + 1, 0);

        for (int64_t i = 0; i <= LONGEST; i++)
            if (op_below(3) == 0)
                twin_set(&x, 0, i, i % 2 ? 0.0f : -0.0f);
        twin_upload(&x);
        for (int i = 0; i < LENGTHS; i++) {
            const struct twin_bytes out = twin_bytes(&(int64_t){ 5 }, sizeof(int64_t));

            MEG_CALL(cpu, NULL, count_zeros, .out = out.host, .x = meg_element(x.host.p, i % 2, types[k]),
                     .type = types[k], .n = lengths[i]);
            MEG_CALL(gpu, stream, count_zeros, .out = out.dev, .x = meg_element(x.dev.p, i % 2, types[k]),
                     .type = types[k], .n = lengths[i]);
            expect_equal_bytes(&out, "number of zeros");
        }
    }
}

static void weighted_sum(void)
{
    const struct twin x = twin_random(MEG_DTYPE_F32, 1, LONGEST, 0), w = twin_random(MEG_DTYPE_F32, 1, LONGEST, 0);

    for (int i = 0; i < LENGTHS; i++)
        for (int k = 0; k < 4; k++) {
            const struct twin_bytes out = twin_bytes(&(double){ 0.5 }, sizeof(double));
            const struct twin_bytes scale = twin_bytes(&(double){ -1.5 }, sizeof(double));

            MEG_CALL(cpu, NULL, weighted_sum, .out = out.host, .x = x.host.p, .weight = k & 1 ? w.host.p : NULL,
                     .n = lengths[i], .scale = k & 2 ? scale.host : NULL);
            MEG_CALL(gpu, stream, weighted_sum, .out = out.dev, .x = x.dev.p, .weight = k & 1 ? w.dev.p : NULL,
                     .n = lengths[i], .scale = k & 2 ? scale.dev : NULL);
            expect_near_f64(&out, 1e-11, k & 1 ? "weighted sum" : "sum");
        }
}

/* Compare meg_cuda_column_sums with sums in f64.  The rows of x begin `shift` elements after aligned addresses. */
static void compare_column_sums(enum meg_dtype type, enum meg_dtype out_type, int64_t n, int64_t cols, int64_t pad,
                                int64_t shift, bool accumulate)
{
    const struct twin x = twin_random(type, n, shift + cols, pad);
    struct twin out = accumulate ? twin_random(out_type, 1, cols, 0) : twin_output(out_type, 1, cols, 0);

    meg_cuda_column_sums(stream, out.dev.p, out_type,
                         (struct meg_mat){ meg_element(x.dev.p, shift, type), type, n, cols, shift + cols + pad },
                         accumulate);
    for (int64_t c = 0; c < cols; c++) {
        double sum = accumulate ? twin_get(&out, 0, c) : 0;

        for (int64_t r = 0; r < n; r++)
            sum += twin_get(&x, r, shift + c);
        twin_set(&out, 0, c, (float)sum);
    }
    expect_near(&out, op_tolerance(out_type), "column sums");
}

static void column_sums_shapes(void)
{
    for (int k = 0; k < TYPES; k++) {
        compare_column_sums(types[k], MEG_DTYPE_F32, 1, 1, 0, 0, false);
        compare_column_sums(types[k], MEG_DTYPE_F32, 7, 259, 5, 0, true);
        compare_column_sums(types[k], MEG_DTYPE_F32, 65, 264, 8, 0, false);
        compare_column_sums(types[k], MEG_DTYPE_F32, 56, 64, 0, 8, true);
        compare_column_sums(types[k], MEG_DTYPE_F32, 40, 48, 0, 3, false);
        compare_column_sums(types[k], MEG_DTYPE_F32, 1111, 24, 0, 0, false);
    }
}

static void column_sums_types(void)
{
    for (int i = 0; i < TYPES; i++)
        for (int k = 0; k < TYPES; k++) {
            compare_column_sums(types[i], types[k], 19, 72, 0, 0, false);
            compare_column_sums(types[i], types[k], 19, 71, 0, 0, true);
        }
}

/* Compare with so many rows that a warp loads more than one batch of them. */
static void column_sums_long(void)
{
    compare_column_sums(MEG_DTYPE_BF16, MEG_DTYPE_F32, 9001, 8, 0, 0, false);
}

static void column_sums_empty(void)
{
    compare_column_sums(MEG_DTYPE_BF16, MEG_DTYPE_F32, 0, 300, 0, 0, false);
    compare_column_sums(MEG_DTYPE_BF16, MEG_DTYPE_F32, 0, 300, 0, 0, true);
    compare_column_sums(MEG_DTYPE_BF16, MEG_DTYPE_F32, 5, 0, 8, 0, false);
}

const struct check_case cases_reduce[] = {
    { "sumsq: lengths, types and unaligned arrays", sumsq_lengths },
    { "sumsq: squares above the range of f32, Inf and NaN", sumsq_overflow },
    { "sumsq_ranges: ranges of all lengths", sumsq_ranges },
    { "count_zeros: lengths, types and unaligned arrays", count_zeros },
    { "weighted_sum: lengths, with and without weights and scale", weighted_sum },
    { "column_sums: shapes and unaligned rows", column_sums_shapes },
    { "column_sums: types, accumulated or not", column_sums_types },
    { "column_sums: many rows", column_sums_long },
    { "column_sums: no rows or no columns", column_sums_empty },
    { 0 },
};
