/* The checked operation table aborts on arguments that tensor/ops.h forbids, and passes others to the backend. */
#include "tensor/check_ops.h"
#include <signal.h>
#include "child.h"
#include "cpu/internal.h"

enum { N = 3, F = 4 };

static const struct meg_glu silu = { MEG_GLU_SILU, 0, 0 };
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
    meg_cpu_level(MEG_CPU_BASE)->glu_bwd(NULL, &silu, mat(0, N, 2 * F), mat(1, N, F), mat(2, N, 2 * F));
    memcpy(want, data[0], sizeof want);
    fill();
    checked()->glu_bwd(NULL, &silu, mat(0, N, 2 * F), mat(1, N, F), mat(2, N, 2 * F));
    assert_memory_equal(data[0], want, sizeof want);
    checked()->glu_bwd(NULL, &silu, mat(2, N, 2 * F), mat(1, N, F), mat(2, N, 2 * F)); /* dx may be x */
    assert_memory_equal(data[2], want, sizeof want);
    checked()->add_fwd(NULL, mat(0, N, F), mat(0, N, F), mat(1, N, F), NULL, NULL); /* z may be x */
}

static void every_activation_is_accepted(void **state)
{
    const struct meg_linear_desc desc = { N, F, F, MEG_DTYPE_F32, MEG_DTYPE_F32, MEG_DTYPE_F32, MEG_DTYPE_F32 };
    const char *why;
    struct meg_linear *l = checked()->linear_create(&desc, &why);
    const struct meg_mat w = { data[3], MEG_DTYPE_F32, F, F, F };

    (void)state;
    fill();
    for (int act = MEG_ACT_GELU_TANH; act <= MEG_ACT_RELU; act++) {
        checked()->linear_fwd(NULL, l, mat(0, N, F), mat(1, N, F), mat(2, N, F), w, NULL, (enum meg_act)act);
        checked()->linear_bwd_data(NULL, l, mat(0, N, F), mat(2, N, F), w, mat(1, N, F), (enum meg_act)act);
        checked()->act_bwd(NULL, mat(0, N, F), mat(2, N, F), mat(1, N, F), (enum meg_act)act);
    }
    checked()->linear_destroy(l);
}

/* The columns that are read and written do not overlap, although their memory interleaves. */
static void columns_of_one_matrix_are_disjoint(void **state)
{
    struct meg_mat y = { data[0], MEG_DTYPE_F32, N, 2, 2 * F }, x = { data[0] + 2, MEG_DTYPE_F32, N, 4, 2 * F };

    (void)state;
    fill();
    checked()->glu_fwd(NULL, &silu, y, x);
}

static void wrong_rows(void *arg)
{
    (void)arg;
    checked()->glu_fwd(NULL, &silu, mat(0, N, F), mat(1, N + 2, 2 * F));
}

static void wrong_columns(void *arg)
{
    (void)arg;
    checked()->add_bwd(NULL, mat(0, N, F), NULL, MEG_DTYPE_F32, mat(1, N, F + 3), NULL, false);
}

static void short_ld(void *arg)
{
    struct meg_mat x = mat(1, N, 2 * F);

    (void)arg;
    x.ld = 5;
    checked()->glu_fwd(NULL, &silu, mat(0, N, F), x);
}

static void wrong_dtype(void *arg)
{
    struct meg_mat x = mat(1, N, 2 * F);

    (void)arg;
    x.dtype = MEG_DTYPE_I64;
    checked()->glu_fwd(NULL, &silu, mat(0, N, F), x);
}

static void no_memory(void *arg)
{
    (void)arg;
    checked()->embed_fwd(NULL, mat(0, N, F), NULL, mat(1, 2, F), 0);
}

static void overlap(void *arg)
{
    struct meg_mat y = mat(1, N, F);

    (void)arg;
    y.p = data[1] + F;
    checked()->glu_fwd(NULL, &silu, y, mat(1, N, 2 * F));
}

/* Columns 6 and 7 are written while columns 3 to 6 are read. */
static void overlap_of_columns(void *arg)
{
    struct meg_mat y = { data[0] + 6, MEG_DTYPE_F32, N, 2, 2 * F }, x = { data[0] + 3, MEG_DTYPE_F32, N, 4, 2 * F };

    (void)arg;
    checked()->glu_fwd(NULL, &silu, y, x);
}

static void heads_that_overlap(void *arg)
{
    struct meg_heads dst = { data[0], MEG_DTYPE_F32, 8, 8, 2, 2 }, src = { data[1], MEG_DTYPE_F32, 8, 8, 4, 4 };

    (void)arg;
    checked()->copy_heads(NULL, dst, NULL, src, 2, 1, 2, 4);
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
    const struct meg_attn_bwd_args args = { .dq = g,
                                            .dk = h,
                                            .dv = { data[2] + 2, MEG_DTYPE_F32, 2, 2, 2, 2 },
                                            .d_rel_bias = d_rel_bias,
                                            .d_o = h,
                                            .lse = data[2],
                                            .delta = data[2],
                                            .q = h,
                                            .k = g,
                                            .v = h };

    checked()->attn_bwd(NULL, desc, &args, NULL);
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
    checked()->sgd(NULL, &x, &range, 1, 0, &step);
}

static void a_wrong_argument_aborts_and_names_both_values(void **state)
{
    static const struct {
        void (*call)(void *);
        const char *message;
    } c[] = {
        { wrong_rows, "x.rows == y.rows does not hold (5 and 3)" },
        { wrong_columns, "dy.cols == dz.cols does not hold (4 and 7)" },
        { short_ld, "x.cols <= x.ld does not hold (8 and 5)" },
        { wrong_dtype, "x.dtype <= MEG_DTYPE_F16 does not hold (5 and 2)" },
        { no_memory, "token || x.rows == 0 does not hold" },
        { overlap, "no overlap between y, x does not hold" },
        { overlap_of_columns, "no overlap between y, x does not hold" },
        { heads_that_overlap, "d <= dst.ld_g does not hold (4 and 2)" },
        { distance_of_no_logarithm, "desc->rel_bias.rows / (desc->rel_bias_is_bidirectional ? 4 : 2) < "
                                    "desc->rel_bias_max_distance does not hold (4 and 4)" },
        { wrong_buckets, "args->d_rel_bias.rows == desc->rel_bias.rows does not hold (9 and 8)" },
        { no_workspace, "args->workspace.nbytes does not hold (72 and 0)" },
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(right_arguments_give_the_same_result),
        cmocka_unit_test(every_activation_is_accepted),
        cmocka_unit_test(columns_of_one_matrix_are_disjoint),
        cmocka_unit_test(a_wrong_argument_aborts_and_names_both_values),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
