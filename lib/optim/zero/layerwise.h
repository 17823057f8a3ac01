/*
 * layerwise.h - ZeRO-2 and ZeRO-3 (FSDP): collectives on the gradients and parameters of one layer group at a time.
 *
 * A layer group has a bucket for each data-parallel group and dtype (params/param.h), and each bucket is divided into
 * one shard per rank.  A group's gradients are reduce-scattered after each backward pass and added to the gradient
 * shards.  With ZeRO-3, the group's parameters are all-gathered before each forward and backward pass, unless a buffer
 * still contains these parameters.  With --overlap-param-gather, the next group is prefetched.  At most one
 * reduce-scatter and one all-gather are in flight at a time.
 *
 * Frozen parameters in f32 may be states that the model updates.  Before a group leaves its buffer, this rank's shards
 * of them are copied back.
 */
#pragma once
#include "optim/nan_guard.h"
#include "optim/zero/shard.h"
#include "optim/zero/tp_grads.h"
#include "params/param.h"

struct meg_layer_reducer {
    const struct meg_mesh *mesh;
    const struct meg_params *params;
    const struct meg_zero_shard *shard; /* shard->grads has the sums over passes and ranks */
    const struct meg_device *device;
    struct meg_nan_guard *nan_guard;
    const struct meg_tp_grads *tp_grads;
    void *g; /* unsharded buffers of gradients of type dtype, overwritten by each pass; padding is 0 */
    enum meg_dtype dtype;
    bool *has_grads;       /* [nbuckets] whether shard->grads contains gradients of this step */
    bool overlaps;         /* reduce-scatter the last bucket of a group during the backward pass of the next group */
    struct meg_comm *comm; /* communicator of the operation in flight */
    struct meg_work *work;
    int bucket_in_flight;                  /* bucket that is being reduce-scattered; -1: none */
    int last_group[MEG_UNSHARDED_BUFFERS]; /* layer group whose gradients were last in each buffer; 0: none */
};

/* Begin a step, before its first pass.  The first gradients of each bucket will overwrite the shard. */
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
 * Finish the last reduce-scatter, and all-reduce the gradient shards over the optimizer instances.  Call this after the
 * last pass of a step.
 */
void meg_layer_reducer_end(struct meg_layer_reducer *q);

struct meg_layer_gatherer {
    const struct meg_mesh *mesh;
    const struct meg_params *params;
    const struct meg_zero_shard *shard; /* shard->params has this rank's parameter shards */
    const struct meg_device *device;    /* its compute stream reads the gathered parameters */
    void *w;                            /* unsharded buffers of the parameters of a model in dtype */
    enum meg_dtype dtype;
    bool overlaps;                       /* prefetch the next group */
    int gathered[MEG_UNSHARDED_BUFFERS]; /* layer group in each buffer, or being gathered into it; -1: none */
    struct meg_comm *comm;               /* communicator of the operation in flight */
    struct meg_work *work;
};

/* Copy the states of the gathered groups back to the shards. */
void meg_layer_gatherer_store_states(struct meg_layer_gatherer *q);
/* Invalidate the gathered groups, after the shards were updated. */
void meg_layer_gatherer_invalidate(struct meg_layer_gatherer *q);
/* Gather `group`, unless it is gathered, and wait for it.  With overlap, start to gather `next` (-1: none). */
void meg_layer_gatherer_unshard(struct meg_layer_gatherer *q, int group, int next);
void meg_layer_gatherer_poll(struct meg_layer_gatherer *q);
/* Wait for the operation in flight. */
void meg_layer_gatherer_end(struct meg_layer_gatherer *q);
