/*
 * grad_reduce.h - data-parallel reduction of gradients, one bucket at a time, and the all-gather of parameters.
 *
 * A gradient is reduced up to three times, in this order even if communication overlaps the backward pass:
 *   1. over the tensor-parallel ranks, for replicated parameters of whose gradient each rank computes a part
 *      (optim/zero/tp_grads.h);
 *   2. over the data-parallel group of the bucket (dense parameters or experts): an all-reduce, or with the distributed
 *      optimizer a reduce-scatter followed by an all-reduce over the optimizer instances;
 *   3. over the pipeline stages that use a tied parameter, such as a tied embedding.
 */
#pragma once
#include "optim/nan_guard.h"
#include "optim/zero/tp_grads.h"
#include "params/param.h"

struct meg_reducer {
    const struct meg_mesh *mesh;
    const struct meg_params *params;
    struct meg_nan_guard *nan_guard;
    const struct meg_tp_grads *tp_grads;
    struct meg_stream *stream; /* stream that computes the gradients */
    char *g;                   /* [params->grad_numel] gradients of type dtype */
    enum meg_dtype dtype;
    bool overlaps;         /* reduce a bucket during the last backward pass, when its gradients are final */
    int64_t *passes_left;  /* [nlayer_groups] number of backward passes that still add to the group's gradients */
    bool *is_tp_reduced;   /* [nlayer_groups] whether reduction 1 is done or not required */
    int *groups_pending;   /* [nbuckets] number of the bucket's layer groups with is_tp_reduced false */
    bool *is_started;      /* [nbuckets] whether reduction 2 has started */
    struct meg_comm *comm; /* communicator of the operation in flight */
    struct meg_work *work;
    int bucket_in_flight; /* bucket being reduced; -1: none */
};

/* Prepare the reduction of gradients g [params->grad_numel].  All pointers are borrowed. */
void meg_reducer_init(struct meg_reducer *r, const struct meg_mesh *mesh, const struct meg_params *params,
                      struct meg_nan_guard *nan_guard, const struct meg_tp_grads *tp_grads, struct meg_stream *stream,
                      void *g, enum meg_dtype dtype, bool overlaps);
void meg_reducer_free(struct meg_reducer *r);

/* Begin a step of num_passes backward passes through each layer group. */
void meg_reducer_begin(struct meg_reducer *r, int64_t num_passes);
/*
 * Record that a backward pass has added to a layer group's gradients.  With overlap, start to reduce a bucket when the
 * gradients of its layer groups are final.
 */
void meg_reducer_grads_ready(struct meg_reducer *r, int group);
/* Make progress on the operation in flight, if any, without blocking. */
void meg_reducer_poll(struct meg_reducer *r);
/*
 * Finish the reductions of a step.  Afterwards, each rank has the reduced gradients of all elements or, with the
 * distributed optimizer, only its shard of each bucket.
 */
void meg_reducer_end(struct meg_reducer *r);

/*
 * All-gather of the parameters w after an update.  Each rank contributes its shard of every bucket.  Buckets are
 * gathered in the order of the forward pass, from the last bucket to the first.
 */
struct meg_gatherer {
    const struct meg_mesh *mesh;
    const struct meg_params *params;
    struct meg_stream *stream; /* stream that updates and reads the parameters */
    void *w;                   /* [params->flat_numel] parameters of a model in dtype */
    enum meg_dtype dtype;
    struct meg_comm *comm; /* communicator of the operation in flight */
    struct meg_work *work;
    int bucket_in_flight; /* bucket being gathered; buckets above it are complete; -1: all are complete */
};

void meg_gatherer_init(struct meg_gatherer *q, const struct meg_mesh *mesh, const struct meg_params *params,
                       struct meg_stream *stream, void *w, enum meg_dtype dtype);
/* Start to gather the last bucket.  When the wait for bucket i ends, the all-gather of bucket i - 1 starts. */
void meg_gatherer_begin(struct meg_gatherer *q);
/* Wait for the buckets that contain a layer group's parameters, and start to gather the next bucket, if any. */
void meg_gatherer_wait(struct meg_gatherer *q, int group);
void meg_gatherer_poll(struct meg_gatherer *q);
/* Gather the remaining buckets and wait for them. */
void meg_gatherer_end(struct meg_gatherer *q);
