/* layerwise.c - collectives of ZeRO-2 and ZeRO-3, one layer group at a time. */
#include "optim/zero/layerwise.h"
#include <string.h>
#include "placement/placement.h"
#include "tensor/suballoc.h"

enum { COLUMNS = 4096 };

/* Return the communicators of a bucket's data-parallel group. */
static const struct meg_dp_comms *comms_of(const struct meg_mesh *m, const struct meg_params *p, int b)
{
    return &m->dp[p->bucket[b].dp_group];
}

/* Return the number of elements of this rank's shard of bucket b. */
static int64_t shard_numel(const struct meg_zero_shard *s, int b)
{
    return s->range[b].end - s->range[b].begin;
}

/* ---- gradients ------------------------------------------------------------------------------ */

/* Return the unsharded gradients of bucket b. */
static char *grads_of(const struct meg_layer_reducer *q, int b)
{
    return meg_element(q->g, q->params->bucket[b].unsharded[MEG_UNSHARDED_GRADS], q->dtype);
}

/* Add x [n] to sum [n]. */
static void accumulate(const struct meg_layer_reducer *q, char *sum, const char *x, int64_t n)
{
    const struct meg_drop none = { 0 };

    for (int64_t i = 0, m; i < n; i += m) {
        const int64_t rows = (n - i) / COLUMNS;
        struct meg_mat s, d;

        m = rows ? rows * COLUMNS : n - i;
        s = meg_mat(meg_element(sum, i, q->dtype), q->dtype, rows ? rows : 1, rows ? COLUMNS : m);
        d = meg_mat(meg_element(x, i, q->dtype), q->dtype, s.rows, s.cols);
        MEG_CALL(q->device->op, q->device->compute, add_fwd, .z = s, .x = s, .y = d, .drop = &none);
    }
}

/* Add x to this rank's gradient shard of a bucket.  The first x of a step overwrites the shard. */
static void add_to_shard(struct meg_layer_reducer *q, int b, const char *x)
{
    char *sum = meg_element(q->shard->grads, q->shard->bucket_shard[b].shard_offset, q->dtype);
    const int64_t n = shard_numel(q->shard, b);

    if (q->has_grads[b])
        accumulate(q, sum, x, n);
    else
        q->device->op->copy(q->device->compute, sum, x, (size_t)n * meg_dtype_size(q->dtype));
    q->has_grads[b] = true;
}

/* Return this rank's shard of the unsharded gradients of bucket b. */
static char *shard_of(const struct meg_layer_reducer *q, int b)
{
    return meg_element(grads_of(q, b), comms_of(q->mesh, q->params, b)->shard->rank * shard_numel(q->shard, b),
                       q->dtype);
}

static void end_reduce(struct meg_layer_reducer *q)
{
    if (q->bucket_in_flight < 0)
        return;
    meg_comm_wait(q->comm, q->device->compute, q->work);
    q->work = NULL;
    add_to_shard(q, q->bucket_in_flight, shard_of(q, q->bucket_in_flight));
    q->bucket_in_flight = -1;
}

static void begin_reduce(struct meg_layer_reducer *q, int b)
{
    end_reduce(q);
    q->bucket_in_flight = b;
    q->comm = comms_of(q->mesh, q->params, b)->shard;
    q->work = q->comm->op->start(q->comm, q->device->compute,
                                 &(struct meg_comm_call){ MEG_REDUCE_SCATTER, shard_of(q, b), grads_of(q, b),
                                                          shard_numel(q->shard, b), q->dtype, MEG_REDUCE_SUM, 0 });
}

/* Return whether the gradients of two layer groups have the same sizes and the same offsets in their buffer. */
static bool has_equal_layout(const struct meg_params *p, int a, int b)
{
    const int n = p->first_row[a + 1] - p->first_row[a];

    if (p->first_row[b + 1] - p->first_row[b] != n)
        return false;
    for (int i = 0; i < n; i++) {
        const struct meg_param *x = &p->row[p->first_row[a] + i], *y = &p->row[p->first_row[b] + i];

        if (x->is_frozen != y->is_frozen ||
            (!x->is_frozen && (x->shard_numel != y->shard_numel || x->grad_offset != y->grad_offset)))
            return false;
    }
    return true;
}

void meg_layer_reducer_begin(struct meg_layer_reducer *q)
{
    memset(q->has_grads, 0, (size_t)q->params->nbuckets * sizeof *q->has_grads);
}

void meg_layer_reducer_prepare(struct meg_layer_reducer *q, int group)
{
    const struct meg_params *p = q->params;
    const int buffer = meg_unsharded_buffer(p, group);
    const int in_flight = q->bucket_in_flight >= 0 ? p->bucket[q->bucket_in_flight].layer_group : -1;

    /* group 0 is reduced at the end of a backward pass, and its buffer is written without a call of this function */
    if (in_flight == 0 || (in_flight > 0 && meg_unsharded_buffer(p, in_flight) == buffer))
        end_reduce(q);
    /* the padding between the parameters must be 0, but the buffer has gradients of parameters at other offsets */
    if (q->last_group[buffer] > 0 && !has_equal_layout(p, group, q->last_group[buffer]))
        for (int b = 0; b < q->shard->nupdated; b++)
            if (p->bucket[b].layer_group == group)
                q->device->op->zero(q->device->compute, grads_of(q, b),
                                    (size_t)(p->bucket[b].range.end - p->bucket[b].range.begin) *
                                        meg_dtype_size(q->dtype));
    q->last_group[buffer] = group;
    meg_placement_layer_group(p, group, q->g, q->dtype, true);
}

void meg_layer_reducer_grads_ready(struct meg_layer_reducer *q, int group)
{
    meg_nan_guard_check(q->nan_guard, group, q->g, q->dtype);
    meg_tp_grads_reduce(q->tp_grads, group, q->g);
    for (int b = 0; b < q->shard->nupdated; b++)
        if (q->params->bucket[b].layer_group == group)
            begin_reduce(q, b);
    if (!q->overlaps)
        end_reduce(q);
}

void meg_layer_reducer_poll(struct meg_layer_reducer *q)
{
    meg_comm_test(q->comm, &q->work);
}

void meg_layer_reducer_end(struct meg_layer_reducer *q)
{
    const struct meg_zero_bucket_shard *shard = q->shard->bucket_shard;
    const struct meg_bucket *bucket = q->params->bucket;

    end_reduce(q);
    for (int first = 0, end; first < q->shard->nupdated; first = end) { /* buckets of one data-parallel group */
        int64_t n = 0;

        for (end = first; end < q->shard->nupdated && bucket[end].dp_group == bucket[first].dp_group; end++)
            n += shard_numel(q->shard, end);
        meg_all_reduce(comms_of(q->mesh, q->params, first)->replica, q->device->compute,
                       meg_element(q->shard->grads, shard[first].shard_offset, q->dtype), n, q->dtype, MEG_REDUCE_SUM);
    }
}

/* ---- parameters ----------------------------------------------------------------------------- */

void meg_layer_gatherer_invalidate(struct meg_layer_gatherer *q)
{
    for (int i = 0; i < MEG_UNSHARDED_BUFFERS; i++)
        q->gathered[i] = -1;
}

void meg_layer_gatherer_end(struct meg_layer_gatherer *q)
{
    meg_comm_wait(q->comm, q->device->compute, q->work);
    q->work = NULL;
}

void meg_layer_gatherer_poll(struct meg_layer_gatherer *q)
{
    meg_comm_test(q->comm, &q->work);
}

/* Return this rank's parameter shard of bucket b. */
static char *param_shard(const struct meg_layer_gatherer *q, int b)
{
    return meg_params_shard_element(q->params, q->shard->range, q->shard->nbucket_shards, q->shard->params,
                                    q->shard->bucket_shard[b].shard_offset, q->dtype);
}

/* Copy this rank's shards of the states of the group in a buffer back. */
static void store_states(const struct meg_layer_gatherer *q, int buffer)
{
    const struct meg_params *p = q->params;

    for (int b = q->shard->nupdated; b < p->nbuckets && q->gathered[buffer] >= 0; b++) {
        const size_t nbytes = (size_t)shard_numel(q->shard, b) * sizeof(float);
        struct meg_comm *c = comms_of(q->mesh, p, b)->shard;
        const char *w = meg_params_unsharded_bucket(p, q->w, b, q->dtype);

        if (p->bucket[b].layer_group != q->gathered[buffer] || p->bucket[b].range.begin < p->f32[1].begin)
            continue;
        q->device->op->copy(q->device->compute, param_shard(q, b), w + (size_t)c->rank * nbytes, nbytes);
        meg_placement_declare(param_shard(q, b), nbytes, c, MEG_PLACEMENT_REPLICATED, MEG_PLACEMENT_FLAT);
    }
}

void meg_layer_gatherer_store_states(struct meg_layer_gatherer *q)
{
    for (int i = 0; i < MEG_UNSHARDED_BUFFERS; i++)
        store_states(q, i);
}

/* Start the all-gather of a layer group, unless it is gathered or in flight. */
static void gather(struct meg_layer_gatherer *q, int group)
{
    const struct meg_params *p = q->params;
    const int buffer = meg_unsharded_buffer(p, group);

    if (q->gathered[buffer] == group)
        return;
    meg_layer_gatherer_end(q);
    store_states(q, buffer);
    q->gathered[buffer] = group;
    meg_placement_layer_group(p, group, q->w, q->dtype, false);
    for (int b = 0; b < p->nbuckets; b++)
        if (p->bucket[b].layer_group == group) {
            meg_layer_gatherer_end(q);
            q->comm = comms_of(q->mesh, p, b)->shard;
            q->work = q->comm->op->start(
                q->comm, q->device->compute,
                &(struct meg_comm_call){ .op = MEG_ALL_GATHER,
                                         .out = meg_params_unsharded_bucket(p, q->w, b, q->dtype),
                                         .in = param_shard(q, b),
                                         .n = shard_numel(q->shard, b),
                                         .dtype = meg_params_dtype(p, p->bucket[b].range.begin, q->dtype) });
        }
}

void meg_layer_gatherer_unshard(struct meg_layer_gatherer *q, int group, int next)
{
    gather(q, group);
    meg_layer_gatherer_end(q);
    if (q->overlaps && next >= 0)
        gather(q, next);
}
