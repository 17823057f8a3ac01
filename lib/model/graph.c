/* graph.c - sequences of operations that are launched as graphs (tensor/ops.h). */
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "model/internal.h"

struct model_graph {
    struct model_graph *next;
    void *key;
    size_t key_nbytes;
    struct meg_graph *graph; /* NULL: the operations were executed once, without a graph */
};

static void graph_free(const struct meg_ops *op, struct model_graph *x)
{
    if (x->graph)
        op->graph_destroy(x->graph);
    free(x->key);
    free(x);
}

void model_graphs_free(const struct meg_ops *op, struct model_graphs *graphs)
{
    for (struct model_graph *x; (x = graphs->first);) {
        graphs->first = x->next;
        graph_free(op, x);
    }
}

/* Remove the graph with this key from the list, and return the graph, or NULL if there is none. */
static struct model_graph *take(struct model_graphs *graphs, const void *key, size_t nbytes)
{
    for (struct model_graph **link = &graphs->first, *x; (x = *link); link = &x->next)
        if (x->key_nbytes == nbytes && memcmp(x->key, key, nbytes) == 0) {
            *link = x->next;
            return x;
        }
    return NULL;
}

static void insert(struct model_graphs *graphs, struct model_graph *x)
{
    x->next = graphs->first;
    graphs->first = x;
}

/* Free the least recently used graph if there are MODEL_MAX_GRAPHS. */
static void free_oldest(struct meg_model *g, struct model_graphs *graphs)
{
    struct model_graph **link = &graphs->first;
    int n = 0;

    for (; *link && n < MODEL_MAX_GRAPHS - 1; n++)
        link = &(*link)->next;
    if (!*link)
        return;
    if ((*link)->graph)
        meg_device_synchronize(g->device, g->device->compute); /* the graph may still be executing */
    graph_free(g->op, *link);
    *link = NULL;
}

void model_graph_run(struct meg_model *g, struct model_graphs *graphs, const void *key, size_t nbytes,
                     void (*run)(struct meg_model *g, const void *args), const void *args)
{
    struct meg_stream *st = g->device->compute;
    struct model_graph *x;

    if (!g->op->graph_begin) {
        run(g, args);
        return;
    }
    x = take(graphs, key, nbytes);
    if (!x) {
        free_oldest(g, graphs);
        x = meg_new(sizeof *x);
        x->key = meg_new(nbytes);
        x->key_nbytes = nbytes;
        memcpy(x->key, key, nbytes);
        run(g, args);
    } else {
        if (!x->graph) {
            g->op->graph_begin(st);
            run(g, args);
            x->graph = g->op->graph_end(st);
        }
        g->op->graph_launch(st, x->graph);
    }
    insert(graphs, x);
}
