/*
 * sync.h - the collectives of data-parallel training, for each ZeRO stage.
 *
 *     stage   gradients                                     parameters
 *     0       all-reduce each bucket                        no communication
 *     1       reduce-scatter each bucket                    all-gather each bucket after the update
 *     2       reduce-scatter a layer after its backward     all-gather each bucket after the update
 *     3       reduce-scatter a layer after its backward     all-gather a layer before its forward and backward
 *
 * A layer here is a layer group of params/param.h.  optim/zero/grad_reduce.h implements the collectives on buckets,
 * optim/zero/layerwise.h the collectives on layers.
 */
#pragma once
#include "model/model.h"
#include "optim/zero/grad_reduce.h"
#include "optim/zero/layerwise.h"
#include "optim/zero/shard.h"

struct meg_zero_sync {
    bool shards_grads;  /* stages 2 and 3 */
    bool shards_params; /* stage 3 */
    bool overlaps_param_gather;
    struct meg_reducer reducer;               /* reduces complete gradients (stages 0 and 1) */
    struct meg_gatherer gatherer;             /* all-gathers complete parameters (stages 1 and 2) */
    struct meg_layer_reducer layer_reducer;   /* reduce-scatters gradients layer by layer (stages 2 and 3) */
    struct meg_layer_gatherer layer_gatherer; /* all-gathers parameters layer by layer (stage 3) */
};

/*
 * Prepare the collectives on a model's parameters and gradients.  shard->params (stage 3) and shard->grads (stages 2
 * and 3) are allocated.  All pointers are borrowed.
 */
void meg_zero_sync_init(struct meg_zero_sync *z, const struct meg_zero_conf *c, const struct meg_model *model,
                        struct meg_nan_guard *nan_guard, const struct meg_tp_grads *tp_grads,
                        const struct meg_zero_shard *shard);
/* Wait for the all-gathers of parameters in flight, and free the memory of z, which may be zero-initialized. */
void meg_zero_sync_free(struct meg_zero_sync *z);

/* Implement the callbacks of struct meg_model_hooks. */
void meg_zero_params_needed(struct meg_zero_sync *z, int group, int next, bool is_backward);
void meg_zero_grads_ready(struct meg_zero_sync *z, int group);

/* Begin a step of num_passes backward passes through each layer group. */
void meg_zero_begin(struct meg_zero_sync *z, int64_t num_passes);
/* Finish the reduction of this step's gradients.  In stages 1 to 3, only this rank's shards are reduced completely. */
void meg_zero_reduce_grads(struct meg_zero_sync *z);
/*
 * Distribute the updated parameters.  Stages 1 and 2 start the all-gather and, without --overlap-param-gather, wait for
 * it.  Stage 3 discards gathered layers.
 */
void meg_zero_params_updated(struct meg_zero_sync *z);
/* Discard gathered layers after the shards were loaded from a checkpoint. */
void meg_zero_params_loaded(struct meg_zero_sync *z);
/* Wait for the all-gathers of parameters in flight. */
void meg_zero_finish_param_sync(struct meg_zero_sync *z);
