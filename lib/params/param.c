/* param.c - the rows of the parameter table, and the ranges of elements that a rank has of each. */
#include "params/param.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"

struct meg_param *meg_params_add(struct meg_params *p, int layer_group, int ndim, const int64_t *dim, const char *fmt,
                                 ...)
{
    struct meg_param *row;
    va_list ap;
    int n;

    if ((p->n & (p->n - 1)) == 0) /* the table is full: its capacity is 0 or a power of two */
        p->row = meg_realloc_array(p->row, p->n ? 2 * (size_t)p->n : 1, sizeof *p->row);
    row = &p->row[p->n++];
    memset(row, 0, sizeof *row);
    va_start(ap, fmt);
    n = vsnprintf(row->name, sizeof row->name, fmt, ap);
    va_end(ap);
    MEG_ASSERT_LT(0, n);
    MEG_ASSERT_LT((size_t)n, sizeof row->name);
    MEG_ASSERT_LT(0, ndim);
    MEG_ASSERT_LE(ndim, MEG_PARAM_MAXDIM);

    row->layer_group = layer_group;
    row->tie = -1;
    row->ndim = ndim;
    row->init.value = meg_init_constant;
    row->numel = 1;
    for (int k = 0; k < ndim; k++) {
        row->numel *= row->dim[k] = dim[k];
        row->sharding[k] = meg_equal_parts(dim[k], 1, MEG_AXIS_NONE);
    }
    if (layer_group >= p->nlayer_groups)
        p->nlayer_groups = layer_group + 1;
    p->numel += row->numel;
    return row;
}

struct meg_sharding meg_equal_parts(int64_t n, int nparts, enum meg_mesh_axis axis)
{
    struct meg_sharding s = { .nparts = nparts };

    MEG_ASSERT_LE(nparts, MEG_PARAM_MAXPARTS);
    for (int i = 0; i < nparts; i++) {
        s.part[i].n = n / nparts;
        s.part[i].axis = axis;
    }
    return s;
}

const struct meg_param *meg_params_find(const struct meg_params *p, const char *name)
{
    const int64_t i = meg_strtab_find(&p->names, name, (int64_t)strlen(name));

    return i < 0 ? NULL : &p->row[i];
}

bool meg_param_is_sharded(const struct meg_param *row, enum meg_mesh_axis axis)
{
    for (int k = 0; k < row->ndim; k++)
        for (int i = 0; i < row->sharding[k].nparts; i++)
            if (row->sharding[k].part[i].axis == axis)
                return true;
    return false;
}

/* Return the last dimension with several parts or an axis, along which a shard has one range a part; 0 if none has. */
static int last_sharded(const struct meg_param *row)
{
    int k = row->ndim - 1;

    while (k > 0 && row->sharding[k].nparts == 1 && row->sharding[k].part[0].axis == MEG_AXIS_NONE)
        k--;
    return k;
}

int64_t meg_param_num_shard_ranges(const struct meg_param *row)
{
    const int last = last_sharded(row);
    int64_t n = row->sharding[last].nparts;

    if (row->shard_numel == 0)
        return 0;
    for (int k = 0; k < last; k++)
        n *= row->shard_dim[k];
    return n;
}

static int64_t length(struct meg_elem_range r)
{
    return r.end - r.begin;
}

/* Return the part of a dimension that contains index *i of the shard, and set *i to the global index. */
static int part_at(const struct meg_sharding *s, int64_t *i)
{
    int part = 0;

    for (; *i >= length(s->part[part].shard); part++)
        *i -= length(s->part[part].shard);
    *i += s->part[part].shard.begin;
    return part;
}

static bool is_tp_axis(enum meg_mesh_axis axis)
{
    return axis == MEG_AXIS_TP || axis == MEG_AXIS_ETP;
}

struct meg_param_shard_range meg_param_shard_range_at(const struct meg_param *row, int64_t i)
{
    const int last = last_sharded(row);
    const struct meg_sharding *s = &row->sharding[last];
    const int64_t part = i % s->nparts;
    int64_t outer = i / s->nparts, stride = 1; /* outer: index of the range in the dimensions before the last one */
    struct meg_param_shard_range range = { .local = outer * row->shard_dim[last],
                                           .is_tp_replica = !is_tp_axis(s->part[part].axis) };

    for (int k = last + 1; k < row->ndim; k++)
        stride *= row->dim[k];
    for (int k = 0; k < part; k++)
        range.local += length(s->part[k].shard);
    range.local *= stride;
    range.n = length(s->part[part].shard) * stride;
    range.global = s->part[part].shard.begin * stride;
    for (int k = last - 1; k >= 0; outer /= row->shard_dim[k--]) {
        int64_t index = outer % row->shard_dim[k];

        if (is_tp_axis(row->sharding[k].part[part_at(&row->sharding[k], &index)].axis))
            range.is_tp_replica = false;
        stride *= row->dim[k + 1];
        range.global += index * stride;
    }
    return range;
}

/* Return whether all ranges of the shard are equally long and equally spaced. */
static bool has_equal_ranges(const struct meg_param *row)
{
    const int last = last_sharded(row);
    const struct meg_sharding *s = &row->sharding[last];

    for (int i = 1; i < s->nparts; i++)
        if (s->part[i].n != s->part[0].n || s->part[i].axis != s->part[0].axis)
            return false;
    for (int k = 1; k < last; k++)
        if (row->shard_dim[k] != row->dim[k])
            return false;
    return last == 0 || row->sharding[0].nparts == 1;
}

int64_t meg_param_num_spans(const struct meg_param *row)
{
    return row->shard_numel > 0 && has_equal_ranges(row) ? 1 : meg_param_num_shard_ranges(row);
}

struct meg_param_span meg_param_span_at(const struct meg_param *row, int64_t i)
{
    const struct meg_param_shard_range r = meg_param_shard_range_at(row, i);
    struct meg_param_span span = { r.local, r.local + r.n, r.global, r.n, 0, r.is_tp_replica };

    if (has_equal_ranges(row)) {
        span.end = row->shard_numel;
        span.ld = r.n < span.end ? meg_param_shard_range_at(row, 1).global - r.global : 0;
    }
    return span;
}

bool meg_param_is_counted(const struct meg_param *row, bool is_tp_replica, const struct meg_mesh *mesh)
{
    return row->shard_numel > 0 && !row->is_tied_replica &&
           (!is_tp_replica || meg_layout_axis_rank(&mesh->layout, mesh->coords, meg_param_tp_axis(row)) == 0);
}

bool meg_param_sums_grad_over_tp(const struct meg_param *row, const struct meg_param_span *span,
                                 const struct meg_layout *l)
{
    const enum meg_mesh_axis axis = meg_param_tp_axis(row);
    const bool has_sharded_parts = meg_param_is_sharded(row, axis);

    return meg_layout_axis_size(l, axis) > 1 && span->is_tp_replica && !row->is_frozen &&
           ((l->has_sp && axis == MEG_AXIS_TP) || row->grad_is_partial_over_tp || has_sharded_parts);
}

void meg_params_free(struct meg_params *p)
{
    free(p->row);
    meg_strtab_free(&p->names);
    free(p->first_row);
    free(p->layer_group);
    free(p->bucket);
    memset(p, 0, sizeof *p);
}
