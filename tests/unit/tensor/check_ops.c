/* The checked operation table aborts on arguments that tensor/ops.h forbids, and passes others to the backend. */
#include "tensor/check_ops.h"
#include <signal.h>
#include "child.h"
#include "cpu/internal.h"
#include "tensor/op_row.h"

enum { N = 3, F = 4 };

static const struct meg_glu silu = { MEG_ACT_SILU, 0, 0 };
static float data[4][N * 2 * F];

static struct meg_mat mat(int i, int64_t rows, int64_t cols)
{
    return (struct meg_mat){ data[i], MEG_DTYPE_F32, rows, cols, cols };
}

static const struct meg_ops *checked(void)
{
    return meg_check_ops(meg_cpu_level(MEG_CPU_BASE));
}

static void fill(void)
{
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < N * 2 * F; k++)
            data[i][k] = (float)(k - 7 * i) / 8;
}

static void right_arguments_give_the_same_result(void **state)
{
    float want[N * 2 * F];

    (void)state;
    fill();
    MEG_CALL(meg_cpu_level(MEG_CPU_BASE), NULL, glu_bwd, .unit = &silu, .dx = mat(0, N, 2 * F), .dy = mat(1, N, F),
             .x = mat(2, N, 2 * F));
    memcpy(want, data[0], sizeof want);
    fill();
    MEG_CALL(checked(), NULL, glu_bwd, .unit = &silu, .dx = mat(0, N, 2 * F), .dy = mat(1, N, F),
             .x = mat(2, N, 2 * F));
    assert_memory_equal(data[0], want, sizeof want);
    MEG_CALL(checked(), NULL, glu_bwd, .unit = &silu, .dx = mat(2, N, 2 * F), .dy = mat(1, N, F),
             .x = mat(2, N, 2 * F)); /* dx may be x */
    assert_memory_equal(data[2], want, sizeof want);
    MEG_CALL(checked(), NULL, add_fwd, .z = mat(0, N, F), .x = mat(0, N, F), .y = mat(1, N, F)); /* z may be x */
}

static void every_activation_is_accepted(void **state)
{
    const struct meg_linear_desc desc = { N, F, F, MEG_DTYPE_F32, MEG_DTYPE_F32, MEG_DTYPE_F32, MEG_DTYPE_F32 };
    const char *why;
    struct meg_linear_plan *l = checked()->linear_create(&desc, &why);
    const struct meg_mat w = { data[3], MEG_DTYPE_F32, F, F, F };

    (void)state;
    fill();
    for (int act = MEG_ACT_GELU_TANH; act < MEG_ACTS; act++) {
        MEG_CALL(checked(), NULL, linear_fwd, .plan = l, .y = mat(0, N, F), .pre = mat(1, N, F), .x = mat(2, N, F),
                 .w = w, .act = (enum meg_act)act);
        MEG_CALL(checked(), NULL, linear_bwd_data, .plan = l, .dx = mat(0, N, F), .dy = mat(2, N, F), .w = w,
                 .pre = mat(1, N, F), .act = (enum meg_act)act);
        MEG_CALL(checked(), NULL, act_bwd, .dx = mat(0, N, F), .dy = mat(2, N, F), .pre = mat(1, N, F),
                 .act = (enum meg_act)act);
    }
    checked()->linear_destroy(l);
}

/* The columns that are read and written do not overlap, although their memory interleaves. */
static void columns_of_one_matrix_are_disjoint(void **state)
{
    struct meg_mat y = { data[0], MEG_DTYPE_F32, N, 2, 2 * F }, x = { data[0] + 2, MEG_DTYPE_F32, N, 4, 2 * F };

    (void)state;
    fill();
    MEG_CALL(checked(), NULL, glu_fwd, .unit = &silu, .y = y, .x = x);
}

static void wrong_rows(void *arg)
{
    (void)arg;
    MEG_CALL(checked(), NULL, glu_fwd, .unit = &silu, .y = mat(0, N, F), .x = mat(1, N + 2, 2 * F));
}

static void wrong_columns(void *arg)
{
    (void)arg;
    MEG_CALL(checked(), NULL, add_bwd, .dy = mat(0, N, F), .grad = MEG_DTYPE_F32, .dz = mat(1, N, F + 3));
}

static void short_ld(void *arg)
{
    struct meg_mat x = mat(1, N, 2 * F);

    (void)arg;
    x.ld = 5;
    MEG_CALL(checked(), NULL, glu_fwd, .unit = &silu, .y = mat(0, N, F), .x = x);
}

static void wrong_dtype(void *arg)
{
    struct meg_mat x = mat(1, N, 2 * F);

    (void)arg;
    x.dtype = MEG_DTYPE_I64;
    MEG_CALL(checked(), NULL, glu_fwd, .unit = &silu, .y = mat(0, N, F), .x = x);
}

static void no_memory(void *arg)
{
    (void)arg;
    MEG_CALL(checked(), NULL, embed_fwd, .x = mat(0, N, F), .word = mat(1, 2, F));
}

static void overlap(void *arg)
{
    struct meg_mat y = mat(1, N, F);

    (void)arg;
    y.p = data[1] + F;
    MEG_CALL(checked(), NULL, glu_fwd, .unit = &silu, .y = y, .x = mat(1, N, 2 * F));
}

/* Columns 6 and 7 are written while columns 3 to 6 are read. */
static void overlap_of_columns(void *arg)
{
    struct meg_mat y = { data[0] + 6, MEG_DTYPE_F32, N, 2, 2 * F }, x = { data[0] + 3, MEG_DTYPE_F32, N, 4, 2 * F };

    (void)arg;
    MEG_CALL(checked(), NULL, glu_fwd, .unit = &silu, .y = y, .x = x);
}

/* dx and dw overlap, and so do outputs in memory of a different type. */
static void overlap_of_outputs(void *arg)
{
    (void)arg;
    MEG_CALL(checked(), NULL, norm_bwd, .type = MEG_NORM_RMS, .dx = mat(0, N, F), .dw = data[0] + N * F - 1,
             .dy = mat(1, N, F), .x = mat(2, N, F), .w = data[3], .rstd = data[3] + F);
}

/* The memory of x is that of y, but not with the same row stride, so this is not an operation in place. */
static void in_place_with_another_stride(void *arg)
{
    struct meg_mat x = mat(0, N, F);

    (void)arg;
    x.ld = F + 1;
    MEG_CALL(checked(), NULL, scale, .y = mat(0, N, F), .x = x, .factor = 2);
}

/* x may be z, but not y. */
static void in_place_of_another_output(void *arg)
{
    (void)arg;
    MEG_CALL(checked(), NULL, add_norm_fwd, .type = MEG_NORM_RMS, .z = mat(0, N, F), .y = mat(1, N, F), .rstd = data[3],
             .x = mat(1, N, F), .sublayer_out = mat(2, N, F), .w = data[3] + N);
}

static void no_means(void *arg)
{
    (void)arg;
    MEG_CALL(checked(), NULL, norm_fwd, .type = MEG_NORM_LAYER, .y = mat(0, N, F), .rstd = data[2], .x = mat(1, N, F),
             .w = data[3], .b = data[3] + F);
}

static void heads_that_overlap(void *arg)
{
    struct meg_heads dst = { data[0], MEG_DTYPE_F32, 8, 8, 2, 2 }, src = { data[1], MEG_DTYPE_F32, 8, 8, 4, 4 };

    (void)arg;
    MEG_CALL(checked(), NULL, copy_heads, .dst = dst, .src = src, .s = 2, .b = 1, .g = 2, .d = 4);
}

static struct meg_attn_desc attn_desc(void)
{
    return (struct meg_attn_desc){ .s_q = 2,
                                   .s_k = 2,
                                   .b = 1,
                                   .a = 1,
                                   .g = 1,
                                   .d = 2,
                                   .d_v = 2,
                                   .s = 2,
                                   .rel_bias = { data[3], MEG_DTYPE_F32, 8, 1, 1 },
                                   .rel_bias_max_distance = 16 };
}

static void call_attn_bwd(const struct meg_attn_desc *desc, struct meg_mat d_rel_bias)
{
    const struct meg_heads h = { data[0], MEG_DTYPE_F32, 2, 2, 2, 2 }, g = { data[1], MEG_DTYPE_F32, 2, 2, 2, 2 };
    const struct meg_attn_bwd_args args = { .desc = desc,
                                            .dq = { data[0] + 8, MEG_DTYPE_F32, 2, 2, 2, 2 },
                                            .dk = { data[1] + 8, MEG_DTYPE_F32, 2, 2, 2, 2 },
                                            .dv = { data[2] + 8, MEG_DTYPE_F32, 2, 2, 2, 2 },
                                            .d_rel_bias = d_rel_bias,
                                            .d_o = h,
                                            .lse = data[2],
                                            .delta = data[2],
                                            .q = h,
                                            .k = g,
                                            .v = h };

    checked()->attn_bwd(NULL, &args);
}

static void distance_of_no_logarithm(void *arg)
{
    struct meg_attn_desc desc = attn_desc();

    (void)arg;
    desc.rel_bias_max_distance = 4;
    call_attn_bwd(&desc, mat(3, 8, 1));
}

static void wrong_buckets(void *arg)
{
    const struct meg_attn_desc desc = attn_desc();

    (void)arg;
    call_attn_bwd(&desc, mat(3, 9, 1));
}

static void no_workspace(void *arg)
{
    const struct meg_attn_desc desc = attn_desc();

    (void)arg;
    call_attn_bwd(&desc, mat(3, 8, 1));
}

static void gradient_through_a_cache(void *arg)
{
    const int64_t block = 0;
    struct meg_attn_desc desc = attn_desc();

    (void)arg;
    desc.block_offset = &block;
    desc.block_size = 2;
    desc.blocks_per_seq = 1;
    call_attn_bwd(&desc, mat(3, 8, 1));
}

static void range_reversed(void *arg)
{
    const struct meg_update_range range = { .begin = 5, .end = 2, .cols = 1 };
    const struct meg_update_arrays x = { .w = { data[0], MEG_DTYPE_F32 },
                                         .g = { data[1], MEG_DTYPE_F32 },
                                         .state = { { data[2], MEG_DTYPE_F32 } } };
    const struct meg_step_hparams step = { { 0, 0 }, 0, 1, 1, 1, 0, 0 };

    (void)arg;
    MEG_CALL(checked(), NULL, sgd, .arrays = &x, .range = &range, .nranges = 1, .step = &step);
}

static void a_wrong_argument_aborts_and_names_both_values(void **state)
{
    static const struct {
        void (*call)(void *);
        const char *message;
    } c[] = {
        { wrong_rows, "glu_fwd: x.rows == n does not hold (5 and 3)" },
        { wrong_columns, "add_bwd: dz.cols == h does not hold (7 and 4)" },
        { short_ld, "glu_fwd: x.cols <= x.ld does not hold (8 and 5)" },
        { wrong_dtype, "glu_fwd: x.dtype <= MEG_DTYPE_F16 does not hold (5 and 2)" },
        { no_memory, "embed_fwd: token is present or has no elements does not hold" },
        { overlap, "glu_fwd: no overlap between y and x does not hold" },
        { overlap_of_columns, "glu_fwd: no overlap between y and x does not hold" },
        { overlap_of_outputs, "norm_bwd: no overlap between dx and dw does not hold" },
        { in_place_with_another_stride, "scale: no overlap between y and x does not hold" },
        { in_place_of_another_output, "add_norm_fwd: no overlap between y and x does not hold" },
        { no_means, "mean || n == 0 || meg_norm_is_rms(type) does not hold" },
        { heads_that_overlap, "copy_heads: d <= dst.ld_g does not hold (4 and 2)" },
        { distance_of_no_logarithm, "desc->rel_bias.rows / (desc->rel_bias_is_bidirectional ? 4 : 2) < "
                                    "desc->rel_bias_max_distance does not hold (4 and 4)" },
        { wrong_buckets, "attn_bwd: d_rel_bias.rows == buckets does not hold (9 and 8)" },
        { no_workspace, "a->workspace.nbytes does not hold (72 and 0)" },
        { gradient_through_a_cache, "!desc->query_start && !desc->block_offset does not hold" },
        { range_reversed, "begin <= end does not hold (5 and 2)" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        struct child child;

        child_run(&child, c[i].call, NULL);
        assert_int_equal(child.status, 128 + SIGABRT);
        if (!strstr(child.err, c[i].message))
            fail_msg("expected \"%s\", got \"%s\"", c[i].message, child.err);
    }
}

/* Check the row of an operation: the shape of each tensor has the right number of terms, and all of them are known. */
static void check_row(const struct meg_op_row *row)
{
    static const char zeros[1024];
    const void *const p = zeros;
    char args[1024] = { 0 };
    struct meg_op_sizes sizes;

    for (const struct meg_op_field *f = row->field; f->name; f++)
        if (f->role || f->nbytes)
            memcpy(args + f->offset, &p, sizeof p);
    sizes = meg_op_sizes_of(row, args);
    for (const struct meg_op_field *f = row->field; f->name; f++) {
        int nterms = 0, len;
        const char *term;

        assert_int_equal(!f->shape, !f->role);
        if (!f->role)
            continue;
        while (meg_op_term(&sizes, f->shape, nterms, &term, &len), len > 0)
            nterms++;
        if (nterms == 0 || (f->type == MEG_FIELD_MAT && nterms != 2) || (f->type == MEG_FIELD_HEADS && nterms != 5))
            fail_msg("%s: the shape of %s, \"%s\", has %d terms", row->name, f->name, f->shape, nterms);
        assert_null(meg_op_mat(&sizes, row, f, args).p == p ? NULL : f->name); /* the field that `typed` names exists */
    }
}

static void rows_have_shapes_of_known_sizes(void **state)
{
#define CHECK_ROW(name) check_row(&meg_row_##name);
    (void)state;
    MEG_TENSOR_OPS(CHECK_ROW)
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(right_arguments_give_the_same_result),
        cmocka_unit_test(every_activation_is_accepted),
        cmocka_unit_test(columns_of_one_matrix_are_disjoint),
        cmocka_unit_test(rows_have_shapes_of_known_sizes),
        cmocka_unit_test(a_wrong_argument_aborts_and_names_both_values),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
