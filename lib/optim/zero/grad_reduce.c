/*
 * grad_reduce.c - reduction of gradients and all-gather of parameters, one bucket at a time.  The collective of the
 * next bucket starts after a wait for the one in flight, never in a poll.  All ranks therefore start their
 * collectives in the same order.
 */
#include "optim/zero/grad_reduce.h"
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"

/* ---- gradients ------------------------------------------------------------------------------ */

void meg_reducer_init(struct meg_reducer *r, const struct meg_mesh *mesh, const struct meg_params *params,
                      struct meg_nan_guard *nan_guard, const struct meg_tp_grads *tp_grads, struct meg_stream *stream,
                      void *g, enum meg_dtype dtype, bool overlaps)
{
    *r = (struct meg_reducer){ mesh, params, nan_guard, tp_grads, stream, g, dtype, overlaps, .bucket_in_flight = -1 };
    r->passes_left = meg_new((size_t)params->nlayer_groups * sizeof *r->passes_left);
    r->is_tp_reduced = meg_new((size_t)params->nlayer_groups * sizeof *r->is_tp_reduced);
    r->groups_pending = meg_new((size_t)params->nbuckets * sizeof *r->groups_pending);
    r->is_started = meg_new((size_t)params->nbuckets * sizeof *r->is_started);
}

void meg_reducer_free(struct meg_reducer *r)
{
    free(r->passes_left);
    free(r->is_tp_reduced);
    free(r->groups_pending);
    free(r->is_started);
    memset(r, 0, sizeof *r);
}

static bool overlap(struct meg_elem_range a, struct meg_elem_range b)
{
    return a.begin < b.end && b.begin < a.end;
}

void meg_reducer_begin(struct meg_reducer *r, int64_t num_passes)
{
    const struct meg_params *p = r->params;

    memset(r->is_started, 0, (size_t)p->nbuckets * sizeof *r->is_started);
    memset(r->groups_pending, 0, (size_t)p->nbuckets * sizeof *r->groups_pending);
    for (int i = 0; i < p->nlayer_groups; i++) {
        r->passes_left[i] = num_passes;
        r->is_tp_reduced[i] = false;
        for (int b = 0; b < p->nbuckets; b++)
            r->groups_pending[b] += overlap(p->layer_group[i], p->bucket[b].range);
    }
}

/* Return the address of element i of the gradients. */
static char *elem(const struct meg_reducer *r, int64_t i)
{
    return meg_element(r->g, i, r->dtype);
}

/* Return the communicators of a bucket's data-parallel group. */
static const struct meg_dp_comms *comms_of(const struct meg_mesh *m, const struct meg_bucket *b)
{
    return &m->dp[b->dp_group];
}

/* Return this rank's shard of a bucket. */
static struct meg_elem_range shard_of(const struct meg_mesh *m, const struct meg_bucket *b)
{
    const struct meg_comm *c = comms_of(m, b)->shard;

    return meg_zero_shard_of(b->range, c->size, c->rank);
}

static void end_bucket(struct meg_reducer *r)
{
    const struct meg_bucket *b;
    struct meg_comm *replica;

    if (r->bucket_in_flight < 0)
        return;
    meg_comm_wait(r->comm, r->stream, r->work);
    r->work = NULL;
    b = &r->params->bucket[r->bucket_in_flight];
    replica = comms_of(r->mesh, b)->replica;
    if (replica->size > 1) {
        const struct meg_elem_range s = shard_of(r->mesh, b);

        meg_all_reduce(replica, r->stream, elem(r, s.begin), s.end - s.begin, r->dtype, MEG_REDUCE_SUM);
    }
    r->bucket_in_flight = -1;
}

static void begin_bucket(struct meg_reducer *r, int b)
{
    const struct meg_bucket *bucket = &r->params->bucket[b];
    const struct meg_dp_comms *comms = comms_of(r->mesh, bucket);
    const struct meg_elem_range all = bucket->range, shard = shard_of(r->mesh, bucket);
    const bool is_sharded = comms->grad->size == 1;
    const struct meg_elem_range *out = is_sharded ? &shard : &all;

    end_bucket(r);
    r->bucket_in_flight = b;
    r->is_started[b] = true;
    r->comm = is_sharded ? comms->shard : comms->grad;
    r->work = r->comm->op->start(r->comm, r->stream,
                                 &(struct meg_comm_call){ .op = is_sharded ? MEG_REDUCE_SCATTER : MEG_ALL_REDUCE,
                                                          .out = elem(r, out->begin),
                                                          .in = is_sharded ? elem(r, all.begin) : NULL,
                                                          .n = out->end - out->begin,
                                                          .dtype = r->dtype,
                                                          .reduce = MEG_REDUCE_SUM });
}

/*
 * Check the gradients of a layer group, which are final, for NaN and Inf, and perform reduction 1 of grad_reduce.h.
 * With overlap, start reduction 2 of each bucket for which this was the last group.  Buckets in f32 belong to no layer
 * group; meg_reducer_end reduces them.
 */
static void finish_group(struct meg_reducer *r, int group)
{
    const struct meg_params *p = r->params;

    meg_nan_guard_check(r->nan_guard, group, r->g, r->dtype);
    meg_tp_grads_reduce(r->tp_grads, group, r->g);
    r->is_tp_reduced[group] = true;
    for (int b = 0; b < p->nbuckets; b++)
        if (overlap(p->layer_group[group], p->bucket[b].range) && --r->groups_pending[b] == 0 && r->overlaps)
            begin_bucket(r, b);
}

void meg_reducer_grads_ready(struct meg_reducer *r, int group)
{
    if (--r->passes_left[group] == 0 && r->overlaps)
        finish_group(r, group);
    meg_reducer_poll(r);
}

void meg_reducer_poll(struct meg_reducer *r)
{
    if (r->bucket_in_flight >= 0)
        meg_comm_test(r->comm, &r->work);
}

/*
 * Perform reduction 3 of grad_reduce.h: all-reduce the gradient of each tied parameter, or this rank's shard of it,
 * over the stages that have the parameter.
 */
static void reduce_tied(struct meg_reducer *r)
{
    const struct meg_params *p = r->params;

    for (int i = 0; i < p->n; i++) {
        const struct meg_param *row = &p->row[i];
        struct meg_elem_range s = { row->offset, row->offset + row->shard_numel };

        if (row->tie < 0 || !row->shard_numel || row->is_frozen || r->mesh->tied[row->tie]->size == 1)
            continue;
        for (int b = 0; b < p->nbuckets && r->mesh->layout.zero.nshards; b++)
            if (p->bucket[b].range.begin == row->offset)
                s = shard_of(r->mesh, &p->bucket[b]);
        meg_all_reduce(r->mesh->tied[row->tie], r->stream, elem(r, s.begin), s.end - s.begin, r->dtype, MEG_REDUCE_SUM);
    }
}

void meg_reducer_end(struct meg_reducer *r)
{
    const struct meg_params *p = r->params;

    for (int i = p->nlayer_groups; i-- > 0;)
        if (!r->is_tp_reduced[i])
            finish_group(r, i);
    for (int b = 0; b < p->nbuckets; b++)
        if (!r->is_started[b])
            begin_bucket(r, b);
    end_bucket(r);
    reduce_tied(r);
}

/* ---- parameters ----------------------------------------------------------------------------- */

void meg_gatherer_init(struct meg_gatherer *q, const struct meg_mesh *mesh, const struct meg_params *params,
                       struct meg_stream *stream, void *w, enum meg_dtype dtype)
{
    *q = (struct meg_gatherer){ mesh, params, stream, w, dtype, .bucket_in_flight = -1 };
}

static void begin_gather(struct meg_gatherer *q, int b)
{
    struct meg_elem_range all, shard;

    q->bucket_in_flight = b;
    if (b < 0)
        return;
    all = q->params->bucket[b].range;
    shard = shard_of(q->mesh, &q->params->bucket[b]);
    q->comm = comms_of(q->mesh, &q->params->bucket[b])->shard;
    q->work =
        q->comm->op->start(q->comm, q->stream,
                           &(struct meg_comm_call){ .op = MEG_ALL_GATHER,
                                                    .out = meg_params_element(q->params, q->w, all.begin, q->dtype),
                                                    .in = meg_params_element(q->params, q->w, shard.begin, q->dtype),
                                                    .n = shard.end - shard.begin,
                                                    .dtype = meg_params_dtype(q->params, all.begin, q->dtype) });
}

void meg_gatherer_begin(struct meg_gatherer *q)
{
    begin_gather(q, q->params->nbuckets - 1);
}

static void end_gather(struct meg_gatherer *q)
{
    meg_comm_wait(q->comm, q->stream, q->work);
    q->work = NULL;
    begin_gather(q, q->bucket_in_flight - 1);
}

void meg_gatherer_wait(struct meg_gatherer *q, int group)
{
    while (q->bucket_in_flight >= 0 &&
           q->params->bucket[q->bucket_in_flight].range.end > q->params->layer_group[group].begin)
        end_gather(q);
    meg_gatherer_poll(q);
}

void meg_gatherer_poll(struct meg_gatherer *q)
{
    meg_comm_test(q->comm, &q->work);
}

void meg_gatherer_end(struct meg_gatherer *q)
{
    while (q->bucket_in_flight >= 0)
        end_gather(q);
}
