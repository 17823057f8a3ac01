/* check_graph.c - cases of graphs: operations that are launched again, on other contents of their tensors. */
#include "base/err.h"
#include "check.h"

enum { ROWS = 24, COLS = 64, LAUNCHES = 3 };

/* Give a matrix of both memories other contents. */
static void change(struct twin *x)
{
    for (int64_t r = 0; r < x->host.rows; r++)
        for (int64_t c = 0; c < x->host.cols; c++)
            twin_set(x, r, c, (float)check_uniform());
    twin_upload(x);
}

/* The tensors and the plans of z = x + norm(x) w^T. */
struct operands {
    struct twin x, norm, mean, rstd, norm_w, w, y, z;
    struct meg_linear *host, *dev;
};

static struct operands operands_new(enum meg_dtype t)
{
    const struct meg_linear_desc desc = { ROWS, COLS, COLS, t, t, t, t };
    const char *why = "no reason";
    const struct operands a = {
        .x = twin_random(t, ROWS, COLS, 0),
        .norm = twin_output(t, ROWS, COLS, 0),
        .mean = twin_output(MEG_DTYPE_F32, 1, ROWS, 0),
        .rstd = twin_output(MEG_DTYPE_F32, 1, ROWS, 0),
        .norm_w = twin_random(t, 1, COLS, 0),
        .w = twin_random(t, COLS, COLS, 0),
        .y = twin_output(t, ROWS, COLS, 0),
        .z = twin_output(t, ROWS, COLS, 0),
        .host = cpu->linear_create(&desc, &why),
        .dev = gpu->linear_create(&desc, &why),
    };

    if (!a.host || !a.dev)
        meg_die(MEG_EFAIL, "no plan: %s", why);
    return a;
}

static void run_gpu(const struct operands *a)
{
    const struct meg_mat none = { 0 };
    const struct meg_drop no_dropout = { 0 };

    gpu->norm_fwd(stream, MEG_NORM_RMS, a->norm.dev, NULL, a->rstd.dev.p, a->x.dev, a->norm_w.dev.p, NULL, 1e-5f);
    gpu->linear_fwd(stream, a->dev, a->y.dev, none, a->norm.dev, a->w.dev, NULL, MEG_ACT_NONE);
    gpu->add_fwd(stream, a->z.dev, a->x.dev, a->y.dev, NULL, &no_dropout);
}

static void run_cpu(const struct operands *a)
{
    const struct meg_mat none = { 0 };
    const struct meg_drop no_dropout = { 0 };

    cpu->norm_fwd(NULL, MEG_NORM_RMS, a->norm.host, NULL, a->rstd.host.p, a->x.host, a->norm_w.host.p, NULL, 1e-5f);
    cpu->linear_fwd(NULL, a->host, a->y.host, none, a->norm.host, a->w.host, NULL, MEG_ACT_NONE);
    cpu->add_fwd(NULL, a->z.host, a->x.host, a->y.host, NULL, &no_dropout);
}

static void compare_launches(enum meg_dtype t)
{
    struct operands a = operands_new(t);
    struct meg_graph *graph;

    run_gpu(&a); /* create plans and workspaces */
    gpu->graph_begin(stream);
    run_gpu(&a);
    graph = gpu->graph_end(stream);
    for (int i = 0; i < LAUNCHES; i++) {
        change(&a.x);
        run_cpu(&a);
        gpu->graph_launch(stream, graph);
        expect_near(&a.z, 2 * check_tolerance(t), "z");
    }
    gpu->graph_destroy(graph);
    cpu->linear_destroy(a.host);
    gpu->linear_destroy(a.dev);
}

static void launches(void)
{
    compare_launches(MEG_DTYPE_F32);
    compare_launches(MEG_DTYPE_BF16);
}

/* The operations of a graph do not run until it is launched. */
static void begin_executes_nothing(void)
{
    struct operands a = operands_new(MEG_DTYPE_F32);
    struct meg_graph *graph;

    run_gpu(&a);
    run_cpu(&a);
    expect_near(&a.z, check_tolerance(MEG_DTYPE_F32), "z");
    change(&a.x);
    gpu->graph_begin(stream);
    run_gpu(&a);
    graph = gpu->graph_end(stream);
    expect_near(&a.z, check_tolerance(MEG_DTYPE_F32), "z of the contents before");
    gpu->graph_destroy(graph);
    cpu->linear_destroy(a.host);
    gpu->linear_destroy(a.dev);
}

const struct check_case cases_graph[] = {
    { "graph: launches on new contents", launches },
    { "graph: nothing is executed before a launch", begin_executes_nothing },
    { NULL, NULL },
};
