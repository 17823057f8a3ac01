/*
 * layerwise.h - ZeRO-2 and ZeRO-3 (FSDP): collectives on the gradients and parameters of one layer group at a time.
 *
 * Each layer group is one bucket (params/param.h), divided into one shard per rank.  A group's gradients are
 * reduce-scattered after each backward pass and added to the gradient shard.  With ZeRO-3, the group's parameters are
 * all-gathered before each forward and backward pass, unless a buffer still contains these parameters.  With
 * --overlap-param-gather, the next group is prefetched.  At most one reduce-scatter and one all-gather are in flight at
 * a time.
 */
#ifndef MEG_OPTIM_ZERO_LAYERWISE_H
#define MEG_OPTIM_ZERO_LAYERWISE_H
#include "optim/nan_guard.h"
#include "optim/zero/tp_grads.h"
#include "params/param.h"

MEG_BEGIN_DECLS

/*
 * Buffers for unsharded layer groups: 0 for the embedding, 1 for the head, 2 and 3 for even and odd layer groups.
 * meg_unsharded_buffer returns the buffer of a group.
 */
enum { MEG_UNSHARDED_BUFFERS = 4 };
int meg_unsharded_buffer(const struct meg_params *p, int group);

struct meg_layer_reducer {
    const struct meg_dp_comms *comms; /* of dense parameters */
    const struct meg_params *params;
    const struct meg_device *device;
    struct meg_nan_guard *nan_guard;
    const struct meg_tp_grads *tp_grads;
    /*
     * [meg_params_unsharded_numel] gradients of type dtype, overwritten by each pass; padding between parameters is 0
     */
    char *g;
    enum meg_dtype dtype;
    void *grad_shards; /* this rank's gradient shards of type dtype, concatenated: sums over passes and ranks */
    bool *has_grads;   /* [nlayer_groups] whether grad_shards contains gradients of this step */
    bool overlaps;     /* reduce-scatter a group during the backward pass of the next group */
    struct meg_work *work;
    int group_in_flight;                   /* layer group that is being reduce-scattered; -1: none */
    int last_group[MEG_UNSHARDED_BUFFERS]; /* layer group whose gradients were last in each buffer; 0: none */
};

/* Begin a step, before its first pass.  The first gradients of each layer group will overwrite the group's shard. */
void meg_layer_reducer_begin(struct meg_layer_reducer *q);
/*
 * Prepare the buffer of a layer group for the group's backward pass.  Wait until the buffer is free.  Zero the buffer
 * if it last contained the gradients of a group whose parameters have other offsets.
 */
void meg_layer_reducer_prepare(struct meg_layer_reducer *q, int group);
/* Start the reduce-scatter of a layer group's gradients, after the backward pass of the group. */
void meg_layer_reducer_grads_ready(struct meg_layer_reducer *q, int group);
/* Make progress on the operation in flight, if any, without blocking. */
void meg_layer_reducer_poll(struct meg_layer_reducer *q);
/*
 * Finish the last reduce-scatter, and all-reduce grad_shards over the optimizer instances.  Call this after the last
 * pass of a step.
 */
void meg_layer_reducer_end(struct meg_layer_reducer *q);

struct meg_layer_gatherer {
    const struct meg_dp_comms *comms; /* of dense parameters */
    const struct meg_params *params;
    struct meg_stream *stream; /* stream that reads the gathered parameters */
    char *w;                   /* [meg_params_unsharded_numel] gathered parameters of type dtype */
    const char *param_shards;  /* this rank's parameter shards of type dtype, concatenated */
    enum meg_dtype dtype;
    bool overlaps;                       /* prefetch the next group */
    int gathered[MEG_UNSHARDED_BUFFERS]; /* layer group in each buffer, or being gathered into it; -1: none */
    struct meg_work *work;
    bool is_in_flight;
};

/* Invalidate the gathered groups, after the shards were updated. */
void meg_layer_gatherer_invalidate(struct meg_layer_gatherer *q);
/* Gather `group`, unless it is gathered, and wait for it.  With overlap, start to gather `next` (-1: none). */
void meg_layer_gatherer_unshard(struct meg_layer_gatherer *q, int group, int next);
void meg_layer_gatherer_poll(struct meg_layer_gatherer *q);
/* Wait for the operation in flight. */
void meg_layer_gatherer_end(struct meg_layer_gatherer *q);

MEG_END_DECLS
#endif
