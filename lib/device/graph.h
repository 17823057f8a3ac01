/*
 * graph.h - a cache of graphs (tensor/ops.h): capture a sequence of operations, and launch it again when its arguments
 * are equal.
 */
#pragma once
#include "device/device.h"

/* Maximum number of keys in struct meg_graphs; a new key replaces the least recently used one. */
enum { MEG_MAX_GRAPHS = 64 };

/* Graphs by their keys; the most recently used key is the first.  Initially zero. */
struct meg_graphs {
    struct meg_keyed_graph *first;
};

/*
 * Queue the operations that run(args) queues on the compute stream.  run and the bytes of args [nbytes], a struct
 * without padding, are the key of the graph: all that the operations depend on and that may change between calls is a
 * member of args, except the contents of device memory.  The first call with a key executes the operations one by one,
 * which creates their plans and workspaces.  The second call captures the operations in a graph and launches it.  Later
 * calls only launch the graph: they do not call run, so the caller must not depend on host state that run sets.  If the
 * device has no graphs (graph_begin is NULL), each call executes the operations.
 */
void meg_graphs_run(struct meg_graphs *graphs, const struct meg_device *d, void (*run)(const void *args),
                    const void *args, size_t nbytes);
/* Free all graphs, after their launches are complete. */
void meg_graphs_free(struct meg_graphs *graphs, const struct meg_device *d);
