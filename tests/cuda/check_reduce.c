/* check_reduce.c - cases of column sums, which several operations of lib/cuda call. */
#include "check.h"
#include "cuda/internal.h"

static const enum meg_dtype types[] = { MEG_DTYPE_F32, MEG_DTYPE_BF16, MEG_DTYPE_F16 };
enum { TYPES = sizeof types / sizeof *types };

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
    { "column_sums: shapes and unaligned rows", column_sums_shapes },
    { "column_sums: types, accumulated or not", column_sums_types },
    { "column_sums: many rows", column_sums_long },
    { "column_sums: no rows or no columns", column_sums_empty },
    { 0 },
};
