/* sync.c - call the collectives of grad_reduce.c and layerwise.c that the ZeRO stage requires. */
#include "optim/zero/sync.h"
#include <stdlib.h>
#include "base/mem.h"

void meg_zero_sync_init(struct meg_zero_sync *z, const struct meg_zero_conf *c, const struct meg_model *model,
                        struct meg_nan_guard *nan_guard, const struct meg_tp_grads *tp_grads,
                        const struct meg_zero_shard *shard)
{
    const struct meg_mesh *m = model->mesh;
    const struct meg_params *p = &model->params;
    const struct meg_model_run *run = &model->run;

    z->shards_grads = run->shards_grads;
    z->shards_params = run->shards_params;
    z->overlaps_param_gather = c->overlap_param_gather;
    meg_reducer_init(&z->reducer, m, p, nan_guard, tp_grads, model->device->compute, model->g, run->grad_dtype,
                     c->overlap_grad_reduce);
    meg_reducer_begin(&z->reducer, 0);
    meg_gatherer_init(&z->gatherer, m, p, model->device->compute, model->w, run->dtype);
    z->layer_reducer = (struct meg_layer_reducer){ .mesh = m,
                                                   .params = p,
                                                   .shard = shard,
                                                   .device = model->device,
                                                   .nan_guard = nan_guard,
                                                   .tp_grads = tp_grads,
                                                   .g = model->g,
                                                   .dtype = run->grad_dtype,
                                                   .has_grads = meg_new((size_t)p->nbuckets * sizeof(bool)),
                                                   .overlaps = c->overlap_grad_reduce,
                                                   .bucket_in_flight = -1 };
    z->layer_gatherer = (struct meg_layer_gatherer){ .mesh = m,
                                                     .params = p,
                                                     .shard = shard,
                                                     .device = model->device,
                                                     .w = model->w,
                                                     .dtype = run->dtype,
                                                     .overlaps = c->overlap_param_gather };
    meg_layer_gatherer_invalidate(&z->layer_gatherer);
}

void meg_zero_sync_free(struct meg_zero_sync *z)
{
    if (z->layer_gatherer.mesh)
        meg_zero_finish_param_sync(z);
    meg_reducer_free(&z->reducer);
    free(z->layer_reducer.has_grads);
}

static void poll(struct meg_zero_sync *z)
{
    meg_reducer_poll(&z->reducer);
    meg_gatherer_poll(&z->gatherer);
    meg_layer_reducer_poll(&z->layer_reducer);
    meg_layer_gatherer_poll(&z->layer_gatherer);
}

void meg_zero_params_needed(struct meg_zero_sync *z, int group, int next, bool is_backward)
{
    if (z->shards_params)
        meg_layer_gatherer_unshard(&z->layer_gatherer, group, next);
    else
        meg_gatherer_wait(&z->gatherer, group);
    if (z->shards_grads && is_backward)
        meg_layer_reducer_prepare(&z->layer_reducer, group);
    poll(z);
}

void meg_zero_grads_ready(struct meg_zero_sync *z, int group)
{
    if (z->shards_grads)
        meg_layer_reducer_grads_ready(&z->layer_reducer, group);
    else
        meg_reducer_grads_ready(&z->reducer, group);
    poll(z);
}

void meg_zero_begin(struct meg_zero_sync *z, int64_t num_passes)
{
    meg_reducer_begin(&z->reducer, num_passes);
    meg_layer_reducer_begin(&z->layer_reducer);
}

void meg_zero_reduce_grads(struct meg_zero_sync *z)
{
    if (z->shards_grads)
        meg_layer_reducer_end(&z->layer_reducer);
    else
        meg_reducer_end(&z->reducer);
}

void meg_zero_params_updated(struct meg_zero_sync *z)
{
    if (z->shards_params) {
        meg_layer_gatherer_end(&z->layer_gatherer);
        meg_layer_gatherer_store_states(&z->layer_gatherer);
        meg_layer_gatherer_invalidate(&z->layer_gatherer);
        return;
    }
    meg_gatherer_begin(&z->gatherer);
    if (!z->overlaps_param_gather)
        meg_gatherer_end(&z->gatherer);
}

void meg_zero_params_loaded(struct meg_zero_sync *z)
{
    meg_layer_gatherer_invalidate(&z->layer_gatherer);
}

void meg_zero_finish_param_sync(struct meg_zero_sync *z)
{
    meg_gatherer_end(&z->gatherer);
    meg_layer_gatherer_end(&z->layer_gatherer);
}
