#include "optim/zero/layerwise.h"
#include "tensor/suballoc.h"

enum { COLUMNS = 4096 };

int meg_unsharded_buffer(const struct meg_params *p, int section)
{
    if (section == 0)
        return 0;
    return section == p->nlayer_groups - 1 ? 1 : 2 + section % 2;
}

static int64_t length(const struct meg_params *p, int section)
{
    return p->layer_group[section].end - p->layer_group[section].begin;
}

/* ---- gradients ------------------------------------------------------------------------------ */

static char *place(const struct meg_layer_reducer *q, int section)
{
    return meg_element(q->g, meg_params_unsharded_offset(q->params, section), q->dtype);
}

/* Slices of sections lie one behind the other, in the order of the flat buffer, as those have the same rank. */
static char *sum_of(const struct meg_layer_reducer *q, int section)
{
    return meg_element(q->grad_shards, q->params->layer_group[section].begin / q->mesh->slices->size, q->dtype);
}

/* sum [n] += x [n] */
static void add(const struct meg_layer_reducer *q, char *sum, const char *x, int64_t n)
{
    const struct meg_drop none = { 0 };

    for (int64_t i = 0, m; i < n; i += m) {
        const int64_t rows = (n - i) / COLUMNS;
        struct meg_mat s, d;

        m = rows ? rows * COLUMNS : n - i;
        s = meg_mat(meg_element(sum, i, q->dtype), q->dtype, rows ? rows : 1, rows ? COLUMNS : m);
        d = meg_mat(meg_element(x, i, q->dtype), q->dtype, s.rows, s.cols);
        q->op->add_fwd(NULL, s, s, d, NULL, &none);
    }
}

static void end_layer_reduce(struct meg_layer_reducer *q)
{
    struct meg_comm *c = q->mesh->slices;
    char *g;
    int64_t n;

    if (q->group_in_flight < 0)
        return;
    meg_comm_wait(c, q->work);
    q->work = NULL;
    g = place(q, q->group_in_flight);
    n = length(q->params, q->group_in_flight);
    add(q, sum_of(q, q->group_in_flight), meg_element(g, c->rank * (n / c->size), q->dtype), n / c->size);
    q->op->zero(NULL, g, (size_t)n * meg_dtype_size(q->dtype));
    q->group_in_flight = -1;
}

/* Sum over tensor-parallel ranks what each has of rows that all have, when they saw other positions. */
static void reduce_sp_grads(struct meg_layer_reducer *q, int section)
{
    const struct meg_params *p = q->params;

    for (int i = 0; i < p->n; i++) {
        const struct meg_param *row = &p->row[i];

        if (row->layer_group == section && row->tp_axis < 0)
            meg_all_reduce(q->mesh->tp,
                           meg_element(place(q, section), row->offset - p->layer_group[section].begin, q->dtype),
                           row->shard_numel, q->dtype, MEG_REDUCE_SUM);
    }
}

void meg_layer_reducer_prepare(struct meg_layer_reducer *q, int section)
{
    if (q->group_in_flight >= 0 &&
        meg_unsharded_buffer(q->params, q->group_in_flight) == meg_unsharded_buffer(q->params, section))
        end_layer_reduce(q);
}

void meg_layer_reducer_grads_ready(struct meg_layer_reducer *q, int section)
{
    struct meg_comm *c = q->mesh->slices;
    const int64_t n = length(q->params, section) / c->size;
    char *g = place(q, section);

    meg_nan_guard_check(q->nan_guard, section, g, q->dtype);
    if (q->mesh->layout.has_sp)
        reduce_sp_grads(q, section);
    end_layer_reduce(q);
    q->group_in_flight = section;
    q->work = c->op->reduce_scatter(c, meg_element(g, c->rank * n, q->dtype), g, n, q->dtype, MEG_REDUCE_SUM);
    if (!q->overlaps)
        end_layer_reduce(q);
}

void meg_layer_reducer_poll(struct meg_layer_reducer *q)
{
    meg_comm_test(q->mesh->slices, &q->work);
}

void meg_layer_reducer_end(struct meg_layer_reducer *q)
{
    end_layer_reduce(q);
    meg_all_reduce(q->mesh->same, q->grad_shards, q->params->flat_numel / q->mesh->slices->size, q->dtype,
                   MEG_REDUCE_SUM);
}

/* ---- parameters ----------------------------------------------------------------------------- */

void meg_layer_gatherer_invalidate(struct meg_layer_gatherer *q)
{
    for (int i = 0; i < MEG_UNSHARDED_BUFFERS; i++)
        q->gathered[i] = -1;
}

void meg_layer_gatherer_end(struct meg_layer_gatherer *q)
{
    meg_comm_wait(q->mesh->slices, q->work);
    q->work = NULL;
    q->is_in_flight = false;
}

void meg_layer_gatherer_poll(struct meg_layer_gatherer *q)
{
    meg_comm_test(q->mesh->slices, &q->work);
}

/* Unless it is there or on its way. */
static void gather(struct meg_layer_gatherer *q, int section)
{
    const struct meg_params *p = q->params;
    struct meg_comm *c = q->mesh->slices;
    const int turn = meg_unsharded_buffer(p, section);

    if (q->gathered[turn] == section)
        return;
    meg_layer_gatherer_end(q);
    q->gathered[turn] = section;
    q->is_in_flight = true;
    q->work = c->op->all_gather(c, meg_element(q->w, meg_params_unsharded_offset(p, section), q->dtype),
                                meg_element(q->param_shards, p->layer_group[section].begin / c->size, q->dtype),
                                length(p, section) / c->size, q->dtype);
}

void meg_layer_gatherer_unshard(struct meg_layer_gatherer *q, int section, int next)
{
    gather(q, section);
    if (q->is_in_flight)
        meg_layer_gatherer_end(q);
    if (q->overlaps && next >= 0)
        gather(q, next);
}
