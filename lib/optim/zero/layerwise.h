/*
 * Gradients and parameters that are whole for a section at a time (model/param.h), and else are with the
 * ranks whose slices they are: ZeRO stages 2 and 3.  Each section is a bucket.  One operation is under way
 * at a time, as in optim/zero/grad_reduce.h.
 */
#ifndef MEG_OPTIM_ZERO_LAYERWISE_H
#define MEG_OPTIM_ZERO_LAYERWISE_H
#include "model/param.h"
#include "optim/nan_guard.h"

MEG_BEGIN_DECLS

/* Places in memory of sections that take turns: the first, the last, and the layers' two. */
enum { MEG_UNSHARDED_BUFFERS = 4 };
int meg_unsharded_buffer(const struct meg_params *p, int section);

/* Gradients: after each pass a section's are summed over ranks, and each adds its slice of them up. */
struct meg_layer_reducer {
    const struct meg_mesh *mesh;
    const struct meg_params *params;
    const struct meg_ops *op;
    struct meg_nan_guard *nan_guard;
    char *g; /* [meg_params_unsharded_numel] of type t; zero but for what a pass is writing */
    enum meg_dtype dtype;
    void *grad_shards; /* [slices of all buckets] of type t, what is added up */
    bool overlaps;     /* a section's go on while the pass does */
    struct meg_work *work;
    int group_in_flight; /* that is under way, or -1 */
};

/* A backward pass comes to a section: its place is zero from now on. */
void meg_layer_reducer_prepare(struct meg_layer_reducer *q, int section);
/* The pass has written it. */
void meg_layer_reducer_grads_ready(struct meg_layer_reducer *q, int section);
void meg_layer_reducer_poll(struct meg_layer_reducer *q);
/* All passes are over: sums are whole, over instances, too. */
void meg_layer_reducer_end(struct meg_layer_reducer *q);

/* Parameters: gathered from the ranks' slices into the section's place before they are read. */
struct meg_layer_gatherer {
    const struct meg_mesh *mesh;
    const struct meg_params *params;
    char *w;                  /* [meg_params_unsharded_numel] of type t */
    const char *param_shards; /* [slices of all buckets] of type t */
    enum meg_dtype dtype;
    bool overlaps;                       /* the section that comes next is on its way meanwhile */
    int gathered[MEG_UNSHARDED_BUFFERS]; /* the section in each place, or -1 */
    struct meg_work *work;
    bool is_in_flight;
};

/* Slices have changed: nothing is there any more. */
void meg_layer_gatherer_invalidate(struct meg_layer_gatherer *q);
/* Wait for a section, and have the one to be read next (-1: none) on its way. */
void meg_layer_gatherer_unshard(struct meg_layer_gatherer *q, int section, int next);
void meg_layer_gatherer_poll(struct meg_layer_gatherer *q);
void meg_layer_gatherer_end(struct meg_layer_gatherer *q);

MEG_END_DECLS
#endif
