/* param.c - the parameter table: shards, buckets and initial weights. */
#include "nn/param.h"
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/hash.h"
#include "base/mem.h"
#include "base/philox.h"

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

/* Compute this rank's shard of a parameter. */
static void shard_row(struct meg_param *row, const struct meg_mesh *mesh)
{
    row->shard_numel = 1;
    for (int k = 0; k < row->ndim; k++) {
        const struct meg_sharding *s = &row->sharding[k];
        const int64_t size = meg_layout_axis_size(&mesh->layout, s->axis), block = row->dim[k] / s->nblocks;
        const int64_t i = meg_layout_axis_rank(&mesh->layout, mesh->coords, s->axis);

        if (s->axis == MEG_AXIS_EP)
            MEG_ASSERT_EQ(block % size, 0); /* offsets of dense parameters are equal on all expert-parallel ranks */
        row->shard_begin[k] = meg_partition_begin(block, size, i);
        row->shard_dim[k] = s->nblocks * (meg_partition_begin(block, size, i + 1) - row->shard_begin[k]);
        row->shard_numel *= row->shard_dim[k];
    }
}

static int64_t gcd(int64_t a, int64_t b)
{
    return b ? gcd(b, a % b) : a;
}

static int64_t round_up(int64_t n, int64_t unit)
{
    return (n + unit - 1) / unit * unit;
}

/* Return the offset in the flat buffer at which the current bucket begins. */
static int64_t bucket_begin(const struct meg_params *p)
{
    return p->nbuckets ? p->bucket[p->nbuckets - 1].range.end : 0;
}

/*
 * End the current bucket, whose parameters have this data-parallel group, unless it is empty.  With a distributed
 * optimizer, pad it, as Megatron does, to a multiple of 128 elements and of the number of shards.
 */
static void end_bucket(struct meg_params *p, const struct meg_layout *l, enum meg_dp_group dp_group)
{
    const int64_t begin = bucket_begin(p), nshards = l->zero.nshards / meg_layout_dp_stride(l, dp_group);

    if (p->flat_numel == begin)
        return;
    if (l->zero.nshards)
        p->flat_numel = begin + round_up(p->flat_numel - begin, nshards / gcd(nshards, 128) * 128);
    p->bucket = meg_realloc_array(p->bucket, (size_t)p->nbuckets + 1, sizeof *p->bucket);
    p->bucket[p->nbuckets++] = (struct meg_bucket){ { begin, p->flat_numel }, dp_group };
}

/* Return whether the current bucket ends before row i, the next parameter in the flat buffer. */
static bool bucket_ends_before(const struct meg_params *p, int i, const struct meg_mesh *mesh)
{
    const struct meg_layout *l = &mesh->layout;

    if (i < 0 || i == p->n - 1)
        return i < 0;
    if (l->zero.stage >= 2)
        return p->row[i].layer_group != p->row[i + 1].layer_group;
    if (l->zero.nshards && l->pp > 1 && p->row[i].tie != p->row[i + 1].tie)
        return true;
    return l->zero.bucket_numel && mesh->coords.pp == 0 && p->flat_numel - bucket_begin(p) >= l->zero.bucket_numel;
}

static void list_first_rows(struct meg_params *p)
{
    p->first_row = meg_realloc_array(p->first_row, (size_t)p->nlayer_groups + 1, sizeof *p->first_row);
    for (int i = p->n, group = p->nlayer_groups; group >= 0; group--) {
        while (i > 0 && p->row[i - 1].layer_group >= group)
            i--;
        p->first_row[group] = i;
    }
}

static void index_names(struct meg_params *p)
{
    if (p->names.n == p->n)
        return;
    meg_strtab_free(&p->names);
    memset(&p->names, 0, sizeof p->names);
    meg_strtab_reserve(&p->names, p->n);
    for (int i = 0; i < p->n; i++)
        meg_strtab_append(&p->names, p->row[i].name, (int64_t)strlen(p->row[i].name));
    MEG_ASSERT_EQ(meg_strtab_index(&p->names), -1);
}

static bool is_on_stage(const struct meg_param *row, const struct meg_mesh *mesh)
{
    return row->tie < 0 ? meg_layout_has_group(&mesh->layout, mesh->coords.pp, row->layer_group)
                        : meg_layout_has_tie(&mesh->layout, mesh->coords.pp, row->tie);
}

void meg_params_shard(struct meg_params *p, const struct meg_mesh *mesh)
{
    const int64_t stage = mesh->coords.pp;
    enum meg_dp_group dp_group = MEG_DP_DENSE; /* of the current bucket */

    p->flat_numel = 0;
    p->nbuckets = 0;
    p->layer_group = meg_realloc_array(p->layer_group, (size_t)p->nlayer_groups, sizeof *p->layer_group);
    memset(p->layer_group, 0, (size_t)p->nlayer_groups * sizeof *p->layer_group);
    for (int i = p->n - 1; i >= 0; i--) {
        struct meg_param *row = &p->row[i];
        struct meg_elem_range *layer_group = &p->layer_group[row->layer_group];

        row->is_tied_replica = row->tie >= 0 && stage > meg_layout_first_tied_stage(&mesh->layout, row->tie);
        row->shard_numel = 0;
        row->dp_group = mesh->layout.ep > 1 && meg_param_is_sharded(row, MEG_AXIS_EP) ? MEG_DP_EXPERT : MEG_DP_DENSE;
        if (bucket_ends_before(p, i, mesh) || row->dp_group != dp_group)
            end_bucket(p, &mesh->layout, dp_group);
        dp_group = row->dp_group;
        row->offset = p->flat_numel;
        if (!is_on_stage(row, mesh))
            continue;
        shard_row(row, mesh);
        p->flat_numel += round_up(row->shard_numel, MEG_PARAM_ALIGN);
        if (layer_group->end == 0)
            layer_group->begin = row->offset;
        layer_group->end = p->flat_numel;
    }
    end_bucket(p, &mesh->layout, dp_group);
    list_first_rows(p);
    index_names(p);
    for (int i = 0, k = 0; mesh->layout.zero.stage >= 2 && i < p->nbuckets; k++)
        if (p->layer_group[p->nlayer_groups - 1 - k].end > 0)
            p->layer_group[p->nlayer_groups - 1 - k].end = p->bucket[i++].range.end;
}

static int64_t group_numel(const struct meg_params *p, int layer_group)
{
    return p->layer_group[layer_group].end - p->layer_group[layer_group].begin;
}

/* Return the number of elements of the largest layer on this rank. */
static int64_t largest_layer(const struct meg_params *p)
{
    int64_t most = 0;

    for (int i = 1; i < p->nlayer_groups - 1; i++)
        most = group_numel(p, i) > most ? group_numel(p, i) : most;
    return most;
}

int64_t meg_params_unsharded_offset(const struct meg_params *p, int layer_group)
{
    const int last = p->nlayer_groups - 1;

    if (layer_group == 0)
        return 0;
    return group_numel(p, 0) + (layer_group == last ? 0 : group_numel(p, last) + layer_group % 2 * largest_layer(p));
}

int64_t meg_params_unsharded_numel(const struct meg_params *p)
{
    return group_numel(p, 0) + group_numel(p, p->nlayer_groups - 1) + 2 * largest_layer(p);
}

bool meg_param_is_sharded(const struct meg_param *row, enum meg_mesh_axis axis)
{
    for (int k = 0; k < row->ndim; k++)
        if (row->sharding[k].axis == axis)
            return true;
    return false;
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

const struct meg_param *meg_params_find(const struct meg_params *p, const char *name)
{
    const int64_t i = meg_strtab_find(&p->names, name, (int64_t)strlen(name));

    return i < 0 ? NULL : &p->row[i];
}

void meg_param_init(const struct meg_param *row, uint32_t seed, int64_t first, int64_t n, float *out)
{
    const uint64_t name = meg_xxh3_64(row->name, strlen(row->name));
    const double fans = row->ndim > 1 ? (double)(row->dim[row->ndim - 2] + row->dim[row->ndim - 1]) : 1;

    if (row->init == MEG_INIT_ZERO || row->init == MEG_INIT_ONE) {
        for (int64_t i = 0; i < n; i++)
            out[i] = row->init == MEG_INIT_ONE;
        return;
    }
#pragma omp parallel for
    for (int64_t i = 0; i < n; i++)
        out[i] = row->init == MEG_INIT_NORMAL
                     ? (float)(row->std * meg_philox_init_normal(seed, name, (uint64_t)(first + i)))
                     : (float)(sqrt(6 / fans) * (2 * meg_philox_init_uniform(seed, name, (uint64_t)(first + i)) - 1));
}

void meg_param_init_shard(const struct meg_param *row, uint32_t seed, int64_t first, int64_t n, float *out)
{
    for (int64_t k = 0; k < meg_param_num_shard_ranges(row); k++) {
        const struct meg_param_shard_range range = meg_param_shard_range_at(row, k);
        const int64_t begin = range.local > first ? range.local : first;
        const int64_t end = range.local + range.n < first + n ? range.local + range.n : first + n;

        if (begin < end)
            meg_param_init(row, seed, range.global + begin - range.local, end - begin, out + begin - first);
    }
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
