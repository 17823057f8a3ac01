/* graph.c - a cache of graphs. */
#include "device/graph.h"
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "tensor/op_log.h"

struct meg_keyed_graph {
    struct meg_keyed_graph *next;
    void (*run)(const void *args);
    void *args;
    size_t nbytes;
    struct meg_graph *graph; /* NULL: the operations were executed once, without a graph */
#ifdef MEG_DEBUG
    struct meg_op_log calls; /* of a device without graphs */
#endif
};

/* Free a graph, after its last launch is complete. */
static void graph_free(struct meg_keyed_graph *x, const struct meg_device *d)
{
    if (x->graph) {
        meg_device_synchronize(d, d->compute);
        d->op->graph_destroy(x->graph);
    }
#ifdef MEG_DEBUG
    meg_op_log_free(&x->calls);
#endif
    free(x->args);
    free(x);
}

void meg_graphs_free(struct meg_graphs *graphs, const struct meg_device *d)
{
    for (struct meg_keyed_graph *x; (x = graphs->first);) {
        graphs->first = x->next;
        graph_free(x, d);
    }
}

/* Remove the graph of run(args) from the list, and return the graph, or NULL if there is none. */
static struct meg_keyed_graph *take(struct meg_graphs *graphs, void (*run)(const void *args), const void *args,
                                    size_t nbytes)
{
    for (struct meg_keyed_graph **link = &graphs->first, *x; (x = *link); link = &x->next)
        if (x->run == run && x->nbytes == nbytes && memcmp(x->args, args, nbytes) == 0) {
            *link = x->next;
            return x;
        }
    return NULL;
}

static void insert(struct meg_graphs *graphs, struct meg_keyed_graph *x)
{
    x->next = graphs->first;
    graphs->first = x;
}

/* Free the least recently used graph if there are MEG_MAX_GRAPHS. */
static void free_oldest(struct meg_graphs *graphs, const struct meg_device *d)
{
    struct meg_keyed_graph **link = &graphs->first;
    int n = 0;

    for (; *link && n < MEG_MAX_GRAPHS - 1; n++)
        link = &(*link)->next;
    if (!*link)
        return;
    graph_free(*link, d);
    *link = NULL;
}

/* Return a new graph that is not captured yet and not in the list.  If the list is full, free its oldest graph. */
static struct meg_keyed_graph *graph_new(struct meg_graphs *graphs, const struct meg_device *d,
                                         void (*run)(const void *args), const void *args, size_t nbytes)
{
    struct meg_keyed_graph *x;

    free_oldest(graphs, d);
    x = meg_new(sizeof *x);
    x->run = run;
    x->args = meg_new(nbytes);
    x->nbytes = nbytes;
    memcpy(x->args, args, nbytes);
    return x;
}

#ifdef MEG_DEBUG
/*
 * Execute the operations on a device without graphs.  If run(args) was executed before, check that the arguments of its
 * operations were equal.
 */
static void run_and_compare(struct meg_graphs *graphs, const struct meg_device *d, void (*run)(const void *args),
                            const void *args, size_t nbytes)
{
    struct meg_keyed_graph *x = take(graphs, run, args, nbytes);
    struct meg_op_log calls = { 0 };

    meg_op_log_begin(&calls);
    run(args);
    meg_op_log_end();
    if (x) {
        meg_op_log_require_equal(&x->calls, &calls);
        meg_op_log_free(&calls);
    } else {
        x = graph_new(graphs, d, run, args, nbytes);
        x->calls = calls;
    }
    insert(graphs, x);
}
#endif

void meg_graphs_run(struct meg_graphs *graphs, const struct meg_device *d, void (*run)(const void *args),
                    const void *args, size_t nbytes)
{
    struct meg_keyed_graph *x;

    if (!d->op->graph_begin) {
#ifdef MEG_DEBUG
        run_and_compare(graphs, d, run, args, nbytes);
#else
        run(args);
#endif
        return;
    }
    x = take(graphs, run, args, nbytes);
    if (!x) {
        x = graph_new(graphs, d, run, args, nbytes);
        run(args);
    } else {
        if (!x->graph) {
            d->op->graph_begin(d->compute);
            run(args);
            x->graph = d->op->graph_end(d->compute);
        }
        d->op->graph_launch(d->compute, x->graph);
    }
    insert(graphs, x);
}
