/*
 * layerwise.h - ZeRO-2 and ZeRO-3 (FSDP): gradients and parameters are complete for one layer group at a time.
 *
 * A rank keeps its shard of every layer group.  A group's gradients are reduce-scattered after each backward pass
 * and added to the shard; its parameters are all-gathered before each pass, and the next group is prefetched.
 * Each layer group is one bucket (model/param.h).  One operation is in flight at a time, as in grad_reduce.h.
 */
#ifndef MEG_OPTIM_ZERO_LAYERWISE_H
#define MEG_OPTIM_ZERO_LAYERWISE_H
#include "model/param.h"
#include "optim/nan_guard.h"

MEG_BEGIN_DECLS

/* Buffers for unsharded groups: 0 the embedding, 1 the head, 2 and 3 the layers, by parity. */
enum { MEG_UNSHARDED_BUFFERS = 4 };
int meg_unsharded_buffer(const struct meg_params *p, int group);

struct meg_layer_reducer {
    const struct meg_mesh *mesh;
    const struct meg_params *params;
    const struct meg_ops *op;
    struct meg_nan_guard *nan_guard;
    char *g; /* [meg_params_unsharded_numel] of type dtype; zero outside the groups that a pass is writing */
    enum meg_dtype dtype;
    void *grad_shards; /* [shard] of type dtype: the sums over passes and ranks, buckets concatenated */
    bool overlaps;     /* a group's reduce-scatter overlaps the backward pass of the next */
    struct meg_work *work;
    int group_in_flight; /* -1: none */
};

/* Make the buffer of a layer group available and zero, before its backward pass. */
void meg_layer_reducer_prepare(struct meg_layer_reducer *q, int group);
/* Start the reduce-scatter of a layer group's gradients, after its backward pass. */
void meg_layer_reducer_grads_ready(struct meg_layer_reducer *q, int group);
/* Progress the operation in flight without blocking. */
void meg_layer_reducer_poll(struct meg_layer_reducer *q);
/* Finish after the last pass: grad_shards has the sums, over the optimizer instances too. */
void meg_layer_reducer_end(struct meg_layer_reducer *q);

struct meg_layer_gatherer {
    const struct meg_mesh *mesh;
    const struct meg_params *params;
    char *w;                  /* [meg_params_unsharded_numel] of type dtype: the gathered groups */
    const char *param_shards; /* [shard] of type dtype, buckets concatenated */
    enum meg_dtype dtype;
    bool overlaps;                       /* prefetch the next group */
    int gathered[MEG_UNSHARDED_BUFFERS]; /* the layer group in each buffer, or in flight to it; -1: none */
    struct meg_work *work;
    bool is_in_flight;
};

/* Invalidate all gathered groups, because the shards were updated. */
void meg_layer_gatherer_invalidate(struct meg_layer_gatherer *q);
/* Wait until a group is gathered, and prefetch the group next (-1: none). */
void meg_layer_gatherer_unshard(struct meg_layer_gatherer *q, int group, int next);
void meg_layer_gatherer_poll(struct meg_layer_gatherer *q);
/* Wait for the operation in flight. */
void meg_layer_gatherer_end(struct meg_layer_gatherer *q);

MEG_END_DECLS
#endif
