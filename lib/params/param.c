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
    row->numel = 1;
    for (int k = 0; k < ndim; k++) {
        row->numel *= row->dim[k] = dim[k];
        row->sharding[k].nblocks = 1;
    }
    if (layer_group >= p->nlayer_groups)
        p->nlayer_groups = layer_group + 1;
    p->numel += row->numel;
    return row;
}

const struct meg_param *meg_params_find(const struct meg_params *p, const char *name)
{
    const int64_t i = meg_strtab_find(&p->names, name, (int64_t)strlen(name));

    return i < 0 ? NULL : &p->row[i];
}

bool meg_param_is_sharded(const struct meg_param *row, enum meg_mesh_axis axis)
{
    for (int k = 0; k < row->ndim; k++)
        if (row->sharding[k].axis == axis)
            return true;
    return false;
}

bool meg_param_sums_grad_over_tp(const struct meg_param *row, const struct meg_layout *l)
{
    return row->shard_numel > 0 && l->tp > 1 && (l->has_sp || row->grad_is_partial_over_tp) &&
           !meg_param_is_sharded(row, MEG_AXIS_TP);
}

/* Return the last sharded dimension, along which a block of the shard is contiguous; 0 if no dimension is sharded. */
static int last_sharded(const struct meg_param *row)
{
    int k = row->ndim - 1;

    while (k > 0 && row->sharding[k].axis == MEG_AXIS_NONE)
        k--;
    return k;
}

int64_t meg_param_num_shard_ranges(const struct meg_param *row)
{
    const int last = last_sharded(row);
    int64_t n = row->sharding[last].nblocks;

    if (row->shard_numel == 0)
        return 0;
    for (int k = 0; k < last; k++)
        n *= row->shard_dim[k];
    return n;
}

/* Return the index in the global tensor, along dimension k, of index i of the shard. */
static int64_t global_index(const struct meg_param *row, int k, int64_t i)
{
    const int64_t nblocks = row->sharding[k].nblocks, n = row->shard_dim[k] / nblocks;

    return i / n * (row->dim[k] / nblocks) + row->shard_begin[k] + i % n;
}

struct meg_param_shard_range meg_param_shard_range_at(const struct meg_param *row, int64_t i)
{
    const int last = last_sharded(row);
    int64_t first = i * (row->shard_dim[last] / row->sharding[last].nblocks); /* in units of `stride` elements */
    int64_t stride = 1;
    struct meg_param_shard_range range = { 0 };

    for (int k = last + 1; k < row->ndim; k++)
        stride *= row->dim[k];
    range.local = first * stride;
    range.n = row->shard_dim[last] / row->sharding[last].nblocks * stride;
    for (int k = last; k >= 0; k--) {
        range.global += global_index(row, k, first % row->shard_dim[k]) * stride;
        first /= row->shard_dim[k];
        stride *= row->dim[k];
    }
    return range;
}

bool meg_param_is_counted(const struct meg_param *row, const struct meg_mesh *mesh)
{
    return row->shard_numel > 0 && !row->is_tied_replica &&
           (meg_param_is_sharded(row, MEG_AXIS_TP) || mesh->coords.tp == 0);
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
