/* flat_buffer.c - the shards of a rank in its flat buffer: offsets, layer groups and buckets. */
#include <stdlib.h>
#include <string.h>
#include "base/int64.h"
#include "base/mem.h"
#include "params/param.h"

/* Compute this rank's shard of a dimension of n elements, and return its number of elements. */
static int64_t shard_dim(struct meg_sharding *s, int64_t n, const struct meg_mesh *mesh)
{
    int64_t begin = 0, numel = 0; /* begin: of the part */

    for (int i = 0; i < s->nparts; i++) {
        const int64_t size = meg_layout_axis_size(&mesh->layout, s->part[i].axis), part = s->part[i].n;
        const int64_t rank = meg_layout_axis_rank(&mesh->layout, mesh->coords, s->part[i].axis);
        struct meg_elem_range *shard = &s->part[i].shard;

        if (s->part[i].axis == MEG_AXIS_EP)
            MEG_ASSERT_EQ(part % size, 0); /* offsets of dense parameters are equal on all expert-parallel ranks */
        shard->begin = begin + meg_partition_begin(part, size, rank);
        shard->end = begin + meg_partition_begin(part, size, rank + 1);
        numel += shard->end - shard->begin;
        begin += part;
    }
    MEG_ASSERT_EQ(begin, n);
    return numel;
}

/* Compute this rank's shard of a parameter. */
static void shard_row(struct meg_param *row, const struct meg_mesh *mesh)
{
    row->shard_numel = 1;
    for (int k = 0; k < row->ndim; k++) {
        row->shard_dim[k] = shard_dim(&row->sharding[k], row->dim[k], mesh);
        row->shard_numel *= row->shard_dim[k];
    }
}

static int64_t gcd(int64_t a, int64_t b)
{
    return b ? gcd(b, a % b) : a;
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
        p->flat_numel = begin + meg_round_up(p->flat_numel - begin, nshards / gcd(nshards, 128) * 128);
    p->bucket = meg_realloc_array(p->bucket, (size_t)p->nbuckets + 1, sizeof *p->bucket);
    p->bucket[p->nbuckets++] = (struct meg_bucket){ { begin, p->flat_numel }, dp_group };
}

/* Return whether the current bucket ends before `row`, which follows `last` in the flat buffer; NULL: there is none. */
static bool bucket_ends_before(const struct meg_params *p, const struct meg_param *row, const struct meg_param *last,
                               const struct meg_mesh *mesh)
{
    const struct meg_layout *l = &mesh->layout;

    if (!last)
        return false;
    if (row->dp_group != last->dp_group)
        return true;
    if (l->zero.stage >= 2)
        return row->layer_group != last->layer_group;
    if (l->zero.nshards && l->pp > 1 && row->tie != last->tie)
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

/* Return whether the flat buffer of gradients contains a parameter. */
static bool has_grad(const struct meg_param *row, const struct meg_mesh *mesh)
{
    return !row->is_frozen || mesh->layout.zero.stage == 3;
}

static bool is_on_stage(const struct meg_param *row, const struct meg_mesh *mesh)
{
    return row->tie < 0 ? meg_layout_has_group(&mesh->layout, mesh->coords.pp, row->layer_group)
                        : meg_layout_has_tie(&mesh->layout, mesh->coords.pp, row->tie);
}

/* Append this rank's shard of a parameter to the flat buffer, if its stage has the parameter. */
static void append_row(struct meg_params *p, struct meg_param *row, const struct meg_mesh *mesh)
{
    row->is_tied_replica = row->tie >= 0 && mesh->coords.pp > meg_layout_first_tied_stage(&mesh->layout, row->tie);
    row->shard_numel = 0;
    row->offset = p->flat_numel;
    if (is_on_stage(row, mesh))
        shard_row(row, mesh);
    p->flat_numel += meg_round_up(row->shard_numel, MEG_PARAM_ALIGN);
}

/* Append parameters with gradients to the flat buffer, and divide them into layer groups and buckets. */
static void append_buckets(struct meg_params *p, const struct meg_mesh *mesh, bool is_f32)
{
    const struct meg_param *last = NULL;

    for (int i = p->n - 1; i >= 0; i--) {
        struct meg_param *row = &p->row[i];
        struct meg_elem_range *layer_group = &p->layer_group[row->layer_group];

        if (!has_grad(row, mesh) || row->is_f32 != is_f32)
            continue;
        if (bucket_ends_before(p, row, last, mesh))
            end_bucket(p, &mesh->layout, last->dp_group);
        last = row;
        append_row(p, row, mesh);
        if (row->shard_numel == 0 || is_f32)
            continue;
        if (layer_group->end == 0)
            layer_group->begin = row->offset;
        layer_group->end = p->flat_numel;
    }
    if (last)
        end_bucket(p, &mesh->layout, last->dp_group);
}

static void append_frozen(struct meg_params *p, const struct meg_mesh *mesh, bool is_f32)
{
    for (int i = p->n - 1; i >= 0; i--)
        if (!has_grad(&p->row[i], mesh) && p->row[i].is_f32 == is_f32)
            append_row(p, &p->row[i], mesh);
}

void meg_params_shard(struct meg_params *p, const struct meg_mesh *mesh)
{
    p->flat_numel = 0;
    p->nbuckets = 0;
    p->layer_group = meg_realloc_array(p->layer_group, (size_t)p->nlayer_groups, sizeof *p->layer_group);
    memset(p->layer_group, 0, (size_t)p->nlayer_groups * sizeof *p->layer_group);
    for (int i = 0; i < p->n; i++)
        p->row[i].dp_group =
            mesh->layout.ep > 1 && meg_param_is_sharded(&p->row[i], MEG_AXIS_EP) ? MEG_DP_EXPERT : MEG_DP_DENSE;
    append_buckets(p, mesh, false);
    p->f32[0].begin = p->flat_numel;
    append_buckets(p, mesh, true);
    p->f32[0].end = p->grad_numel = p->flat_numel;
    append_frozen(p, mesh, false);
    p->f32[1].begin = p->flat_numel;
    append_frozen(p, mesh, true);
    p->f32[1].end = p->flat_numel;
    MEG_ASSERT(mesh->layout.zero.stage < 2 || p->f32[0].begin == p->f32[0].end);
    list_first_rows(p);
    index_names(p);
    for (int i = 0, k = 0; mesh->layout.zero.stage >= 2 && i < p->nbuckets; k++)
        if (p->layer_group[p->nlayer_groups - 1 - k].end > 0)
            p->layer_group[p->nlayer_groups - 1 - k].end = p->bucket[i++].range.end;
}

enum meg_dtype meg_params_dtype(const struct meg_params *p, int64_t i, enum meg_dtype dtype)
{
    for (int k = 0; k < 2; k++)
        if (p->f32[k].begin <= i && i < p->f32[k].end)
            return MEG_DTYPE_F32;
    return dtype;
}

/* Return the number of elements in f32 before element i of the flat buffer. */
static int64_t num_f32(const struct meg_params *p, int64_t i)
{
    int64_t n = 0;

    for (int k = 0; k < 2; k++)
        n += meg_max64(0, meg_min64(i, p->f32[k].end) - p->f32[k].begin);
    return n;
}

void *meg_params_element(const struct meg_params *p, const void *w, int64_t i, enum meg_dtype dtype)
{
    const int64_t n = num_f32(p, i);

    return meg_element(meg_element(w, i - n, dtype), n, MEG_DTYPE_F32);
}

size_t meg_params_nbytes(const struct meg_params *p, enum meg_dtype dtype)
{
    const int64_t n = num_f32(p, p->flat_numel);

    return (size_t)(p->flat_numel - n) * meg_dtype_size(dtype) + (size_t)n * sizeof(float);
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
        most = meg_max64(most, group_numel(p, i));
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
