/* Graphs of operations: which calls execute, capture and launch them, and how many graphs are kept. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <cmocka.h>
#include <omp.h>
#include "base/mem.h"
#include "child.h"
#include "device/graph.h"
#include "tensor/suballoc.h"

/* The test double of a device with graphs: a graph is the value that was added to it. */
struct meg_graph {
    int value;
};

static bool is_capturing;
static int captured, num_graphs, num_waits;
static int executed; /* the value that was executed last, directly or by a launch */

static void graph_begin(struct meg_stream *st)
{
    (void)st;
    assert_false(is_capturing);
    is_capturing = true;
}

static struct meg_graph *graph_end(struct meg_stream *st)
{
    struct meg_graph *graph = meg_new(sizeof *graph);

    (void)st;
    is_capturing = false;
    graph->value = captured;
    num_graphs++;
    return graph;
}

static void graph_launch(struct meg_stream *st, struct meg_graph *graph)
{
    (void)st;
    executed = graph->value;
}

static void event_record(struct meg_stream *st, struct meg_event *event)
{
    (void)st, (void)event;
    num_waits++;
}

static void graph_destroy(struct meg_graph *graph)
{
    free(graph);
    num_graphs--;
}

/* Number of calls of run(), which executes a value or, during a capture, adds it to the graph. */
static int num_runs;
static void run(const void *value)
{
    num_runs++;
    *(is_capturing ? &captured : &executed) = *(const int *)value;
}

static struct meg_ops op;
static struct meg_device device;

static void begin(bool has_graphs)
{
    device = *meg_device_cpu();
    op = *device.op;
    if (has_graphs) {
        op.graph_begin = graph_begin;
        op.graph_end = graph_end;
        op.graph_launch = graph_launch;
        op.graph_destroy = graph_destroy;
        op.event_record = event_record;
    }
    device.op = &op;
    num_runs = num_waits = 0;
}

/* Run a value with a key.  Return whether it was executed, and run() was called `runs` times. */
static bool calls(struct meg_graphs *graphs, int key, int runs)
{
    const int before = num_runs;

    executed = -1;
    meg_graphs_run(graphs, &device, run, &key, sizeof key);
    return executed == key && num_runs - before == runs;
}

static void the_second_call_with_a_key_captures_a_graph(void **state)
{
    struct meg_graphs graphs = { 0 };

    (void)state;
    begin(true);
    assert_true(calls(&graphs, 1, 1));
    assert_true(calls(&graphs, 2, 1));
    assert_int_equal(num_graphs, 0);
    assert_true(calls(&graphs, 1, 1));
    assert_int_equal(num_graphs, 1);
    for (int i = 0; i < 3; i++)
        assert_true(calls(&graphs, 1, 0));
    assert_true(calls(&graphs, 2, 1));
    assert_true(calls(&graphs, 2, 0));
    assert_true(calls(&graphs, 1, 0));
    assert_int_equal(num_graphs, 2);
    meg_graphs_free(&graphs, &device);
    assert_int_equal(num_graphs, 0);
    assert_null(graphs.first);
}

static void the_least_recently_used_graph_is_freed(void **state)
{
    struct meg_graphs graphs = { 0 };

    (void)state;
    begin(true);
    for (int key = 0; key < MEG_MAX_GRAPHS; key++) {
        assert_true(calls(&graphs, key, 1));
        assert_true(calls(&graphs, key, 1));
    }
    assert_true(calls(&graphs, 0, 0)); /* key 1 is now the least recently used one */
    assert_int_equal(num_waits, 0);
    assert_true(calls(&graphs, MEG_MAX_GRAPHS, 1));
    assert_int_equal(num_waits, 1); /* wait before the graph of key 1 is destroyed: it may still be executing */
    assert_int_equal(num_graphs, MEG_MAX_GRAPHS - 1);
    for (int key = 0; key < MEG_MAX_GRAPHS; key++)
        if (key != 1)
            assert_true(calls(&graphs, key, 0));
    assert_true(calls(&graphs, 1, 1)); /* frees key MEG_MAX_GRAPHS, which has no graph yet */
    assert_int_equal(num_waits, 1);
    meg_graphs_free(&graphs, &device);
    assert_int_equal(num_graphs, 0);
}

static void without_graphs_each_call_executes(void **state)
{
    struct meg_graphs graphs = { 0 };

    (void)state;
    begin(false);
    for (int i = 0; i < 3; i++)
        assert_true(calls(&graphs, 1, 1));
    meg_graphs_free(&graphs, &device);
}

#ifdef MEG_DEBUG
static float factor;
static void scale(const void *unused)
{
    static float y[2];
    const struct meg_mat m = meg_mat(y, MEG_DTYPE_F32, 1, 2);
    (void)unused;

    MEG_CALL(meg_device_cpu()->op, NULL, scale, .y = m, .x = m, .factor = factor);
}

static void scale_by_two_factors(void *unused)
{
    struct meg_graphs graphs = { 0 };

    (void)unused;
    omp_set_num_threads(1); /* the threads of the parent process do not exist */
    for (int i = 0; i < 3; i++) {
        fprintf(stderr, "call %d\n", i);
        factor = i < 2 ? 2 : 3;
        meg_graphs_run(&graphs, meg_device_cpu(), scale, "args", 4);
    }
}

static void multiply(const void *unused)
{
    static float y[2], x[4];
    const struct meg_glu unit = { MEG_ACT_SILU, .limit = factor };
    const struct meg_mat out = meg_mat(y, MEG_DTYPE_F32, 1, 2), in = meg_mat(x, MEG_DTYPE_F32, 1, 4);
    (void)unused;

    MEG_CALL(meg_device_cpu()->op, NULL, glu_fwd, .y = out, .x = in, .unit = &unit);
}

static void multiply_with_two_limits(void *unused)
{
    struct meg_graphs graphs = { 0 };

    (void)unused;
    omp_set_num_threads(1);
    for (factor = 2; factor < 4; factor++)
        meg_graphs_run(&graphs, meg_device_cpu(), multiply, "args", 4);
}

/* An argument that is not in the key is named, also if it is a struct in host memory. */
static void calls_with_equal_keys_have_equal_arguments(void **state)
{
    struct child c;

    (void)state;
    child_run(&c, scale_by_two_factors, NULL);
    assert_int_equal(c.status, 128 + SIGABRT);
    assert_non_null(strstr(c.err, "call 2"));
    assert_non_null(strstr(c.err, "factor of scale is in the key of the graph"));
    child_run(&c, multiply_with_two_limits, NULL);
    assert_int_equal(c.status, 128 + SIGABRT);
    assert_non_null(strstr(c.err, "unit of glu_fwd is in the key of the graph"));
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_second_call_with_a_key_captures_a_graph),
        cmocka_unit_test(the_least_recently_used_graph_is_freed),
        cmocka_unit_test(without_graphs_each_call_executes),
#ifdef MEG_DEBUG
        cmocka_unit_test(calls_with_equal_keys_have_equal_arguments),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
