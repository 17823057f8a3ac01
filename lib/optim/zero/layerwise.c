/* layerwise.c - collectives of ZeRO-2 and ZeRO-3, one layer group at a time. */
#include "optim/zero/layerwise.h"
#include <string.h>
#include "placement/placement.h"
#include "tensor/suballoc.h"

enum { COLUMNS = 4096 };

int meg_unsharded_buffer(const struct meg_params *p, int group)
{
    if (group == 0)
        return 0;
    return group == p->nlayer_groups - 1 ? 1 : 2 + group % 2;
}

static int64_t length(const struct meg_params *p, int group)
{
    return p->layer_group[group].end - p->layer_group[group].begin;
}

/* ---- gradients ------------------------------------------------------------------------------ */

/* Return the unsharded gradient buffer of a layer group. */
static char *buffer_of(const struct meg_layer_reducer *q, int group)
{
    return meg_element(q->g, meg_params_unsharded_offset(q->params, group), q->dtype);
}

/* Return this rank's gradient shard of a layer group.  Shards are concatenated in the order of the flat buffer. */
static char *grad_shard_of(const struct meg_layer_reducer *q, int group)
{
    return meg_element(q->grad_shards, q->params->layer_group[group].begin / q->comms->shard->size, q->dtype);
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

/* Add x [n] to this rank's gradient shard of a layer group.  The first x of a step overwrites the shard. */
static void add_to_shard(struct meg_layer_reducer *q, int group, const char *x, int64_t n)
{
    if (q->has_grads[group])
        accumulate(q, grad_shard_of(q, group), x, n);
    else
        q->device->op->copy(q->device->compute, grad_shard_of(q, group), x, (size_t)n * meg_dtype_size(q->dtype));
    q->has_grads[group] = true;
}

static void end_layer_reduce(struct meg_layer_reducer *q)
{
    struct meg_comm *c = q->comms->shard;
    char *g;
    int64_t n;

    if (q->group_in_flight < 0)
        return;
    meg_comm_wait(c, q->device->compute, q->work);
    q->work = NULL;
    g = buffer_of(q, q->group_in_flight);
    n = length(q->params, q->group_in_flight);
    add_to_shard(q, q->group_in_flight, meg_element(g, c->rank * (n / c->size), q->dtype), n / c->size);
    q->group_in_flight = -1;
}

/* Return whether the parameters of two layer groups have the same sizes and the same offsets in the group's buffer. */
static bool has_equal_layout(const struct meg_params *p, int a, int b)
{
    const int n = p->first_row[a + 1] - p->first_row[a];

    if (p->first_row[b + 1] - p->first_row[b] != n || length(p, a) != length(p, b))
        return false;
    for (int i = 0; i < n; i++) {
        const struct meg_param *x = &p->row[p->first_row[a] + i], *y = &p->row[p->first_row[b] + i];

        if (x->offset >= p->grad_numel && y->offset >= p->grad_numel)
            continue; /* frozen: not in the buffer */
        if (x->shard_numel != y->shard_numel ||
            x->offset - p->layer_group[a].begin != y->offset - p->layer_group[b].begin)
            return false;
    }
    return true;
}

void meg_layer_reducer_begin(struct meg_layer_reducer *q)
{
    memset(q->has_grads, 0, (size_t)q->params->nlayer_groups * sizeof *q->has_grads);
}

void meg_layer_reducer_prepare(struct meg_layer_reducer *q, int group)
{
    const int buffer = meg_unsharded_buffer(q->params, group);

    if (q->group_in_flight >= 0 && meg_unsharded_buffer(q->params, q->group_in_flight) == buffer)
        end_layer_reduce(q);
    /* the padding between the parameters must be 0, but the buffer has gradients of parameters at other offsets */
    if (q->last_group[buffer] > 0 && !has_equal_layout(q->params, group, q->last_group[buffer]))
        q->device->op->zero(q->device->compute, buffer_of(q, group),
                            (size_t)length(q->params, group) * meg_dtype_size(q->dtype));
    q->last_group[buffer] = group;
    meg_placement_layer_group(q->params, group, buffer_of(q, group), q->dtype, true);
}

void meg_layer_reducer_grads_ready(struct meg_layer_reducer *q, int group)
{
    struct meg_comm *c = q->comms->shard;
    const int64_t n = length(q->params, group) / c->size;
    char *g = buffer_of(q, group);

    meg_nan_guard_check(q->nan_guard, group, g, q->dtype);
    meg_tp_grads_reduce(q->tp_grads, group, g);
    end_layer_reduce(q);
    q->group_in_flight = group;
    q->work = c->op->reduce_scatter(c, q->device->compute, meg_element(g, c->rank * n, q->dtype), g, n, q->dtype,
                                    MEG_REDUCE_SUM);
    if (!q->overlaps)
        end_layer_reduce(q);
}

void meg_layer_reducer_poll(struct meg_layer_reducer *q)
{
    meg_comm_test(q->comms->shard, &q->work);
}

void meg_layer_reducer_end(struct meg_layer_reducer *q)
{
    end_layer_reduce(q);
    meg_all_reduce(q->comms->replica, q->device->compute, q->grad_shards, q->params->grad_numel / q->comms->shard->size,
                   q->dtype, MEG_REDUCE_SUM);
}

/* ---- parameters ----------------------------------------------------------------------------- */

void meg_layer_gatherer_invalidate(struct meg_layer_gatherer *q)
{
    for (int i = 0; i < MEG_UNSHARDED_BUFFERS; i++)
        q->gathered[i] = -1;
}

void meg_layer_gatherer_end(struct meg_layer_gatherer *q)
{
    meg_comm_wait(q->comms->shard, q->stream, q->work);
    q->work = NULL;
    q->is_in_flight = false;
}

void meg_layer_gatherer_poll(struct meg_layer_gatherer *q)
{
    meg_comm_test(q->comms->shard, &q->work);
}

/* Start the all-gather of a layer group, unless it is gathered or in flight. */
static void gather(struct meg_layer_gatherer *q, int group)
{
    const struct meg_params *p = q->params;
    struct meg_comm *c = q->comms->shard;
    const int buffer = meg_unsharded_buffer(p, group);

    if (q->gathered[buffer] == group)
        return;
    meg_layer_gatherer_end(q);
    q->gathered[buffer] = group;
    q->is_in_flight = true;
    meg_placement_layer_group(p, group, meg_element(q->w, meg_params_unsharded_offset(p, group), q->dtype), q->dtype,
                              false);
    q->work = c->op->all_gather(c, q->stream, meg_element(q->w, meg_params_unsharded_offset(p, group), q->dtype),
                                meg_element(q->param_shards, p->layer_group[group].begin / c->size, q->dtype),
                                length(p, group) / c->size, q->dtype);
}

void meg_layer_gatherer_unshard(struct meg_layer_gatherer *q, int group, int next)
{
    gather(q, group);
    if (q->is_in_flight)
        meg_layer_gatherer_end(q);
    if (q->overlaps && next >= 0)
        gather(q, next);
}
