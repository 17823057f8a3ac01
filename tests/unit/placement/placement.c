/* In debug builds, a wrong placement of a tensor ends the process and is named; right ones pass. */
#include "placement/placement.h"
#include <signal.h>
#include "child.h"
#include "tensor/suballoc.h"

#ifdef MEG_DEBUG

enum { N = 4, H = 4 };

static struct meg_comm world = { .name = "world", .size = 2 };
static struct meg_comm tp = { .name = "tensor-parallel", .size = 2 };
static struct meg_mesh mesh;
static struct meg_params params;
static const struct meg_device *device;
static float *w, *g, *x, *y, *z, *stat, *tokens;
static int64_t num_rows = N;
static bool is_slow; /* collectives are in flight until they are waited for */

static struct meg_work *start(struct meg_comm *c, struct meg_stream *st, const struct meg_comm_call *x)
{
    (void)c, (void)st, (void)x;
    return is_slow ? (struct meg_work *)&world : NULL;
}

static void wait_for(struct meg_work *handle, struct meg_stream *st)
{
    (void)handle, (void)st;
}

static const struct meg_comm_ops comm_ops = { .start = start, .wait = wait_for };

/* The parameters: column [H,H], row [H,H], norm [H], bias [H]. */
static struct meg_param *add(const char *name, int ndim, int tp_dim)
{
    struct meg_param *row = meg_params_add(&params, 1, ndim, (const int64_t[]){ H, H }, "%s", name);

    if (tp_dim >= 0)
        row->sharding[tp_dim] = meg_equal_parts(row->dim[tp_dim], 1, MEG_AXIS_TP);
    return row;
}

static float *alloc(int64_t n)
{
    return device->op->alloc((size_t)n * sizeof(float));
}

/* Begin on rank 0 of two tensor-parallel ranks. */
static void begin(void)
{
    mesh = meg_mesh_one;
    mesh.layout.tp = mesh.layout.etp = 2;
    mesh.layout.layers = 1;
    mesh.world = &world;
    mesh.tp = mesh.etp = &tp;
    tp.op = &comm_ops;
    add("column", 2, 0);
    add("row", 2, 1);
    add("norm", 1, -1);
    add("bias", 1, -1);
    meg_params_shard(&params, &mesh);
    device = meg_device_cpu();
    meg_placement_begin(&device, &mesh);
    w = alloc(params.flat_numel);
    g = alloc(params.flat_numel);
    x = alloc(N * H);
    y = alloc(N * H);
    z = alloc(N * H);
    stat = alloc(N);
    tokens = alloc(N * H);
    meg_placement_params(&params, w, MEG_DTYPE_F32, false);
    meg_placement_params(&params, g, MEG_DTYPE_F32, true);
    meg_placement_input(tokens, N * H * sizeof *tokens);
}

static struct meg_mat mat(float *p, int64_t cols)
{
    return meg_mat(p, MEG_DTYPE_F32, num_rows, cols);
}

static float *param(float *base, const char *name)
{
    return base + meg_params_find(&params, name)->offset;
}

/* Compute y = tokens column^T, of which this rank has H/2 columns, and z = y row^T, a partial sum. */
static void linears(float *bias)
{
    const struct meg_linear_desc desc[] = { { N, H, H / 2, MEG_DTYPE_F32, MEG_DTYPE_F32, MEG_DTYPE_F32, MEG_DTYPE_F32 },
                                            { N, H / 2, H, MEG_DTYPE_F32, MEG_DTYPE_F32, MEG_DTYPE_F32,
                                              MEG_DTYPE_F32 } };
    const char *why;
    struct meg_linear_plan *column = device->op->linear_create(&desc[0], &why);
    struct meg_linear_plan *row = device->op->linear_create(&desc[1], &why);

    MEG_CALL(device->op, NULL, linear_fwd, .plan = column, .y = mat(y, H / 2), .x = mat(tokens, H),
             .w = meg_mat(param(w, "column"), MEG_DTYPE_F32, H / 2, H), .act = MEG_ACT_GELU_TANH);
    MEG_CALL(device->op, NULL, linear_fwd, .plan = row, .y = mat(z, H), .x = mat(y, H / 2),
             .w = meg_mat(param(w, "row"), MEG_DTYPE_F32, H, H / 2), .bias = bias);
}

static void add_to_tokens(void)
{
    MEG_CALL(device->op, NULL, add_fwd, .z = mat(x, H), .x = mat(tokens, H), .y = mat(z, H), .bias = param(w, "bias"));
}

static void norm(float *from)
{
    MEG_CALL(device->op, NULL, norm_fwd, .type = MEG_NORM_RMS, .y = mat(y, H), .rstd = stat, .x = mat(from, H),
             .w = param(w, "norm"), .eps = 1);
}

/* Compute the gradient of the norm's weight from dy in z. */
static void norm_bwd(bool accumulate)
{
    MEG_CALL(device->op, NULL, norm_bwd, .type = MEG_NORM_RMS, .dx = mat(y, H), .dw = param(g, "norm"), .dy = mat(z, H),
             .x = mat(tokens, H), .w = param(w, "norm"), .rstd = stat, .accumulate = accumulate);
}

static void sum(float *p, int64_t n)
{
    meg_all_reduce(&tp, NULL, p, n, MEG_DTYPE_F32, MEG_REDUCE_SUM);
}

static void update(const char *name)
{
    struct meg_update_range *range = device->op->alloc(sizeof *range);
    struct meg_step_hparams *step = device->op->alloc(sizeof *step);
    float *state = alloc(params.flat_numel);
    const struct meg_param *row = meg_params_find(&params, name);
    const struct meg_update_arrays arrays = { .w = { w, MEG_DTYPE_F32 },
                                              .g = { g, MEG_DTYPE_F32 },
                                              .state = { { state, MEG_DTYPE_F32 } } };

    *range = (struct meg_update_range){
        .begin = row->offset, .end = row->offset + row->shard_numel, .row = (uint32_t)(row - params.row), .cols = H
    };
    MEG_CALL(device->op, NULL, sgd, .arrays = &arrays, .range = range, .nranges = 1, .step = step);
}

/* ---- cases ---------------------------------------------------------------------------------------- */

static void right(void)
{
    linears(NULL);
    sum(z, N * H);
    add_to_tokens();
    norm(x);
    norm_bwd(false);
    norm_bwd(true);
    update("norm");
}

static void reduction_removed(void)
{
    linears(NULL);
    add_to_tokens();
}

static void reduction_doubled(void)
{
    linears(NULL);
    sum(z, N * H);
    sum(z, N * H);
}

static void norm_of_partial(void)
{
    linears(NULL);
    norm(z);
}

static void norm_of_shard(void)
{
    linears(NULL);
    MEG_CALL(device->op, NULL, norm_fwd, .type = MEG_NORM_RMS, .y = mat(x, H / 2), .rstd = stat, .x = mat(y, H / 2),
             .w = param(w, "norm"), .eps = 1);
}

static void bias_on_each_rank(void)
{
    linears(param(w, "bias"));
}

static void gather_of_replicated(void)
{
    meg_all_gather(&tp, NULL, y, tokens, N * H / 2, MEG_DTYPE_F32);
}

static void gather_removed(void)
{
    linears(NULL);
    meg_reduce_scatter(&tp, NULL, x, z, N * H / 2, MEG_DTYPE_F32, MEG_REDUCE_SUM);
    tokens = x;
    num_rows = N / 2;
    linears(NULL);
}

static void partial_gradient(void)
{
    linears(NULL);
    norm_bwd(false);
    update("norm");
}

static void gradient_added_after_sum(void)
{
    linears(NULL);
    norm_bwd(false);
    sum(param(g, "norm"), H);
    norm_bwd(true);
}

/* Each rank has the gradient of the weight of a QK-norm from its own heads, even without sequence parallelism. */
static void qk_norm_gradient(void)
{
    const struct meg_qk_norm q = { .s = N, .b = 1, .g = 1, .heads = 1, .d = H / 2 };
    const struct meg_heads x_heads = { y, MEG_DTYPE_F32, H / 2, H / 2, H / 2, H / 2 };
    const struct meg_heads dy_heads = { z, MEG_DTYPE_F32, H / 2, H / 2, H / 2, H / 2 };

    linears(NULL);
    MEG_CALL(device->op, NULL, qk_norm_fwd, .q = &q, .y = dy_heads, .rstd = stat, .x = x_heads, .w = param(w, "norm"));
    MEG_CALL(device->op, NULL, qk_norm_bwd, .q = &q, .dx = dy_heads, .dw = param(g, "norm"), .dy = dy_heads,
             .x = x_heads, .w = param(w, "norm"), .rstd = stat);
    update("norm");
}

static void unknown(void)
{
    linears(NULL);
    sum(z, N * H);
    device->op->upload(NULL, tokens, w, N * H * sizeof *tokens);
    add_to_tokens();
}

static void in_flight(void)
{
    linears(NULL);
    is_slow = true;
    tp.op->start(&tp, NULL, &(struct meg_comm_call){ MEG_ALL_REDUCE, .out = z, .n = N * H });
    add_to_tokens();
}

static const struct test_case {
    void (*run)(void);
    const char *message;
} cases[] = {
    { reduction_removed,
      "rank 0, step 0: add_fwd: x is replicated over tp (2 ranks); it is added to y, which is partial(sum)" },
    { reduction_doubled,
      "all_reduce in the group tensor-parallel: the buffer is replicated over tp (2 ranks); only a partial sum" },
    { norm_of_partial, "norm_fwd: x is partial(sum) over tp (2 ranks); the operation is not linear in it" },
    { norm_of_shard, "norm_fwd: x is sharded(1) over tp (2 ranks); the operation requires all of it" },
    { bias_on_each_rank, "linear_fwd: bias is replicated over tp (2 ranks); it is added to x" },
    { gather_of_replicated, "all_gather in the group tensor-parallel: the buffer is replicated over tp" },
    { gather_removed, "linear_fwd: w (column) is sharded(0) over tp (2 ranks); x is sharded along another dimension" },
    { partial_gradient, "sgd: norm is partial(sum) over tp (2 ranks); the parameter is replicated" },
    { qk_norm_gradient, "sgd: norm is partial(sum) over tp (2 ranks); the parameter is replicated" },
    { gradient_added_after_sum, "norm_bwd: dw (norm) is replicated over tp (2 ranks); partial(sum) values are added" },
    { unknown, "add_fwd: x is of unknown placement over tp" },
    { in_flight, "add_fwd: y is in flight over tp (2 ranks); wait for the collective first" },
};

static void run(void *fn)
{
    begin();
    ((const struct test_case *)fn)->run();
    meg_placement_end();
}

static void right_placements_pass(void **state)
{
    const struct test_case c = { right, NULL };
    struct child child;

    (void)state;
    child_run(&child, run, (void *)&c);
    assert_string_equal(child.err, "");
    assert_int_equal(child.status, 0);
}

static void wrong_placements_are_named(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct child child;

        child_run(&child, run, (void *)&cases[i]);
        assert_int_equal(child.status, 128 + SIGABRT);
        if (!strstr(child.err, cases[i].message))
            fail_msg("case %zu: %s", i, child.err);
    }
}
#endif

int main(void)
{
#ifdef MEG_DEBUG
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(right_placements_pass),
        cmocka_unit_test(wrong_placements_are_named),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
#else
    puts("1..0 # SKIP placements are checked in debug builds (make check-placement)");
    return 0;
#endif
}
