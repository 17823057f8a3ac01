/*
 * layerwise.h - ZeRO-2 and ZeRO-3 (FSDP): collectives on the gradients and parameters of one layer group at a time.
 *
 * A rank keeps its shard of every layer group.  A group's gradients are reduce-scattered after each backward pass and
 * added to the shard.  With ZeRO-3, its parameters are all-gathered before each pass that does not find them in a
 * buffer, and with --overlap-param-gather the next group is prefetched.  Each layer group is one bucket
 * (model/param.h).  At most one reduce-scatter and one all-gather are in flight at a time.
 */
#ifndef MEG_OPTIM_ZERO_LAYERWISE_H
#define MEG_OPTIM_ZERO_LAYERWISE_H
#include "model/param.h"
#include "optim/nan_guard.h"

MEG_BEGIN_DECLS

/* Buffers for unsharded layer groups: 0 for the embedding, 1 for the head, 2 and 3 for even and odd layer groups. */
enum { MEG_UNSHARDED_BUFFERS = 4 };
int meg_unsharded_buffer(const struct meg_params *p, int group);

struct meg_layer_reducer {
    const struct meg_mesh *mesh;
    const struct meg_params *params;
    const struct meg_device *device;
    struct meg_nan_guard *nan_guard;
    /* [meg_params_unsharded_numel] gradients of type dtype; zero except in groups whose backward pass is running */
    char *g;
    enum meg_dtype dtype;
    void *grad_shards; /* [shard] of type dtype: sums over passes and ranks, buckets concatenated */
    bool overlaps;     /* a group's reduce-scatter overlaps the backward pass of the next */
    struct meg_work *work;
    int group_in_flight; /* layer group that is being reduce-scattered; -1: none */
};

/* Before the backward pass of a layer group, make sure that its buffer is free and zero. */
void meg_layer_reducer_prepare(struct meg_layer_reducer *q, int group);
/* Start the reduce-scatter of a layer group's gradients after its backward pass. */
void meg_layer_reducer_grads_ready(struct meg_layer_reducer *q, int group);
/* Progress the operation in flight without blocking. */
void meg_layer_reducer_poll(struct meg_layer_reducer *q);
/* After the last pass, finish the sums in grad_shards, including the all-reduce over the optimizer instances. */
void meg_layer_reducer_end(struct meg_layer_reducer *q);

struct meg_layer_gatherer {
    const struct meg_mesh *mesh;
    const struct meg_params *params;
    struct meg_stream *stream; /* stream that reads the gathered parameters */
    char *w;                   /* [meg_params_unsharded_numel] of type dtype: the gathered groups */
    const char *param_shards;  /* [shard] of type dtype, buckets concatenated */
    enum meg_dtype dtype;
    bool overlaps;                       /* prefetch the next group */
    int gathered[MEG_UNSHARDED_BUFFERS]; /* layer group in each buffer, or being gathered into it; -1: none */
    struct meg_work *work;
    bool is_in_flight;
};

/* Invalidate all gathered groups, because the shards were updated. */
void meg_layer_gatherer_invalidate(struct meg_layer_gatherer *q);
/* Wait until `group` is gathered, and start to prefetch `next` (-1: none). */
void meg_layer_gatherer_unshard(struct meg_layer_gatherer *q, int group, int next);
void meg_layer_gatherer_poll(struct meg_layer_gatherer *q);
/* Wait for the operation in flight. */
void meg_layer_gatherer_end(struct meg_layer_gatherer *q);

MEG_END_DECLS
#endif
