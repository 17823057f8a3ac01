/*
 * graph.h - run sequences of operations again as graphs (tensor/ops.h).
 */
#ifndef MEG_DEVICE_GRAPH_H
#define MEG_DEVICE_GRAPH_H
#include "device/device.h"

MEG_BEGIN_DECLS

/* Number of graphs that struct meg_graphs keeps. */
enum { MEG_MAX_GRAPHS = 64 };

/* The graphs of a sequence of operations, one for each key; the most recently used graph is the first. */
struct meg_graphs {
    struct meg_keyed_graph *first;
};

/*
 * Queue the operations that run(args) queues on the compute stream.  `key` [nbytes] identifies their arguments: of two
 * calls with equal keys, only the contents of device memory may differ.  The first call with a key executes the
 * operations one by one, which creates their plans and workspaces.  The second call captures the operations in a graph
 * and launches it.  Later calls only launch the graph: they do not call run, so the caller must not depend on host state
 * that run sets.  If the device has no graphs (graph_begin is NULL), each call executes the operations.
 */
void meg_graphs_run(struct meg_graphs *graphs, const struct meg_device *d, const void *key, size_t nbytes,
                    void (*run)(const void *args), const void *args);
/* Free all graphs, whose launches must be complete. */
void meg_graphs_free(struct meg_graphs *graphs, const struct meg_ops *op);

MEG_END_DECLS
#endif
