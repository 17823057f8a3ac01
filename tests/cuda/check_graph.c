/*
 * check_graph.c - cases of graphs of operations, which are launched again after the contents of their tensors change.
 */
#include <string.h>
#include "base/err.h"
#include "check.h"

enum { ROWS = 24, COLS = 64, LAUNCHES = 3 };

/* Change the contents of a matrix in both memories. */
static void change(struct twin *x)
{
    for (int64_t r = 0; r < x->host.rows; r++)
        for (int64_t c = 0; c < x->host.cols; c++)
            twin_set(x, r, c, (float)op_uniform());
    twin_upload(x);
}

/* The tensors and the plans of z = x + norm(x) w^T. */
struct operands {
    struct twin x, norm, rstd, norm_w, w, y, z;
    struct meg_linear_plan *host, *dev;
};

static struct operands operands_new(enum meg_dtype t)
{
    const struct meg_linear_desc desc = { ROWS, COLS, COLS, t, t, t, t };
    const char *why = "no reason";
    const struct operands a = {
        .x = twin_random(t, ROWS, COLS, 0),
        .norm = twin_output(t, ROWS, COLS, 0),
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

static void operands_free(struct operands *a)
{
    cpu->linear_destroy(a->host);
    gpu->linear_destroy(a->dev);
}

static void compute(const struct operands *a, bool on_gpu)
{
    const struct meg_ops *op = on_gpu ? gpu : cpu;
    struct meg_stream *st = on_gpu ? stream : NULL;
    const struct meg_drop no_dropout = { 0 };
#define OF(name) (on_gpu ? a->name.dev : a->name.host)

    MEG_CALL(op, st, norm_fwd, .type = MEG_NORM_RMS, .y = OF(norm), .rstd = OF(rstd).p, .x = OF(x), .w = OF(norm_w).p,
             .eps = 1e-5f);
    MEG_CALL(op, st, linear_fwd, .plan = on_gpu ? a->dev : a->host, .y = OF(y), .x = OF(norm), .w = OF(w));
    MEG_CALL(op, st, add_fwd, .z = OF(z), .x = OF(x), .y = OF(y), .drop = &no_dropout);
#undef OF
}

/* Capture the operations of compute() in a graph. */
static struct meg_graph *capture(const struct operands *a)
{
    gpu->graph_begin(stream);
    compute(a, true);
    return gpu->graph_end(stream);
}

static void compare_launches(enum meg_dtype t)
{
    struct operands a = operands_new(t);
    struct meg_graph *graph;

    compute(&a, true); /* create plans and workspaces */
    graph = capture(&a);
    for (int i = 0; i < LAUNCHES; i++) {
        change(&a.x);
        compute(&a, false);
        gpu->graph_launch(stream, graph);
        expect_near(&a.z, op_tolerance(t), "z");
    }
    gpu->graph_destroy(graph);
    operands_free(&a);
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

    compute(&a, true);
    compute(&a, false);
    expect_near(&a.z, op_tolerance(MEG_DTYPE_F32), "z");
    change(&a.x);
    graph = capture(&a);
    expect_near(&a.z, op_tolerance(MEG_DTYPE_F32), "z of the contents before");
    gpu->graph_destroy(graph);
    operands_free(&a);
}

/* Store a value in both memories. */
static void set_f64(const struct twin_bytes *x, double value)
{
    memcpy(x->host, &value, sizeof value);
    gpu->upload(stream, x->dev, &value, sizeof value);
}

/* The tensors of the losses of logits, and of their weighted sum. */
struct losses {
    struct twin logits, loss, mask;
    struct twin_bytes target, scale, loss_scale, sum;
};

static void compute_losses(const struct losses *a, bool on_gpu)
{
    const struct meg_ops *op = on_gpu ? gpu : cpu;
    struct meg_stream *st = on_gpu ? stream : NULL;
#define OF(name) (on_gpu ? a->name.dev : a->name.host)
    const struct meg_loss_weight weight = { OF(mask).p, OF(scale), OF(loss_scale) };

    MEG_CALL(op, st, xent_fwd_bwd, .loss = OF(loss).p, .logits = OF(logits), .target = OF(target), .weight = weight);
    MEG_CALL(op, st, weighted_sum, .out = OF(sum), .x = OF(loss).p, .weight = OF(mask).p, .n = ROWS,
             .scale = OF(scale));
#undef OF
}

/* A graph reads the factors of losses when it is launched. */
static void factors(void)
{
    int32_t target[ROWS];
    struct losses a = { .logits = twin_random(MEG_DTYPE_F32, ROWS, COLS, 0),
                        .loss = twin_output(MEG_DTYPE_F32, 1, ROWS, 0),
                        .mask = twin_random(MEG_DTYPE_F32, 1, ROWS, 0),
                        .scale = twin_bytes(&(double){ 1 }, sizeof(double)),
                        .loss_scale = twin_bytes(&(double){ 1 }, sizeof(double)),
                        .sum = twin_bytes(&(double){ 0 }, sizeof(double)) };
    struct meg_graph *graph;

    for (int i = 0; i < ROWS; i++)
        target[i] = (int32_t)op_below(COLS);
    a.target = twin_bytes(target, sizeof target);
    compute_losses(&a, true);
    compute_losses(&a, false);
    gpu->graph_begin(stream);
    compute_losses(&a, true);
    graph = gpu->graph_end(stream);
    for (int i = 0; i < LAUNCHES; i++) {
        change(&a.logits);
        change(&a.mask);
        set_f64(&a.scale, 0.5 + i);
        set_f64(&a.loss_scale, 256 << i);
        compute_losses(&a, false);
        gpu->graph_launch(stream, graph);
        expect_near(&a.loss, 1e-5, "loss");
        expect_near(&a.logits, 1e-5, "gradient");
        expect_near_f64(&a.sum, 1e-5, "weighted sum");
    }
    gpu->graph_destroy(graph);
}

const struct check_case cases_graph[] = {
    { "graph: launches on new contents", launches },
    { "graph: nothing is executed before a launch", begin_executes_nothing },
    { "graph: losses with other factors", factors },
    { NULL, NULL },
};
