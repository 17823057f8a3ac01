/* flat_buffer.c - the shards of a rank in its flat buffer: offsets, layer groups and buckets. */
#include <stdlib.h>
#include <string.h>
#include "base/int64.h"
#include "base/mem.h"
#include "params/param.h"

/* Compute this rank's shard of a dimension of n elements, and return its number of elements. */
static int64_t shard_dim(struct meg_sharding *s, int64_t n, const struct meg_mesh *mesh)
{
    const struct meg_layout *l = &mesh->layout;
    int64_t begin = 0, numel = 0; /* begin: of the part */

    for (int i = 0; i < s->nparts; i++) {
        const int64_t size = meg_layout_axis_size(l, s->part[i].axis), part = s->part[i].n;
        const int64_t rank = meg_layout_axis_rank(l, mesh->coords, s->part[i].axis);
        struct meg_elem_range *shard = &s->part[i].shard;

        if (s->part[i].axis == MEG_AXIS_EP || (s->part[i].axis == MEG_AXIS_ETP && l->etp != l->tp))
            MEG_ASSERT_EQ(part % size, 0); /* offsets of dense parameters are equal in a data-parallel group */
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

/*
 * Return the number of elements of a shard in the flat buffer.  If experts have other tensor-parallel groups than dense
 * parameters, each shard occupies as many elements as the largest one, because a data-parallel group of experts, in
 * which offsets are equal, then has several tensor-parallel ranks.
 */
static int64_t stored_numel(const struct meg_param *row, const struct meg_layout *l)
{
    int64_t n = row->shard_numel ? 1 : 0;

    if (l->etp == l->tp)
        return row->shard_numel;
    for (int k = 0; k < row->ndim; k++) {
        int64_t dim = 0;

        for (int i = 0; i < row->sharding[k].nparts; i++)
            dim += meg_ceil_div(row->sharding[k].part[i].n, meg_layout_axis_size(l, row->sharding[k].part[i].axis));
        n *= dim;
    }
    return n;
}

/* Return the offset in the flat buffer at which the current bucket begins. */
static int64_t bucket_begin(const struct meg_params *p)
{
    return p->nbuckets ? p->bucket[p->nbuckets - 1].range.end : 0;
}

enum { UNASSIGNED = -1, NOT_IN_BUCKET = -2 };

/* Return the largest parameter that is not assigned to a shard, or -1. */
static int largest_unassigned(const struct meg_params *p, const int *shard)
{
    int largest = -1;

    for (int i = 0; i < p->n; i++)
        if (shard[i] == UNASSIGNED && (largest < 0 || p->row[i].numel > p->row[largest].numel))
            largest = i;
    return largest;
}

static int least_loaded(const int64_t *load, int nshards)
{
    int k = 0;

    for (int i = 1; i < nshards; i++)
        if (load[i] < load[k])
            k = i;
    return k;
}

/*
 * Move the parameters of the current bucket, so that each is in one of nshards equal shards: the largest one first, to
 * the shard with the fewest elements.  Tensor-parallel ranks have parts of the same parameters, because sizes are those
 * of the complete parameters.
 */
static void keep_params_complete(struct meg_params *p, const struct meg_layout *l, int nshards)
{
    const int64_t begin = bucket_begin(p);
    int64_t *load = meg_new((size_t)nshards * sizeof *load), most = 0;
    int *shard = meg_new((size_t)p->n * sizeof *shard);

    for (int i = 0; i < p->n; i++)
        shard[i] = p->row[i].offset >= begin && p->row[i].shard_numel ? UNASSIGNED : NOT_IN_BUCKET;
    for (int i; (i = largest_unassigned(p, shard)) >= 0; load[shard[i]] += p->row[i].numel)
        shard[i] = least_loaded(load, nshards);
    for (int pass = 0; pass < 2; pass++) { /* compute the length of the longest shard, and then the offsets */
        const int64_t length = meg_round_up(most, 128);

        memset(load, 0, (size_t)nshards * sizeof *load);
        for (int i = p->n - 1; i >= 0; i--)
            if (shard[i] >= 0) {
                p->row[i].offset = begin + shard[i] * length + load[shard[i]];
                load[shard[i]] += meg_round_up(stored_numel(&p->row[i], l), MEG_PARAM_ALIGN);
                most = meg_max64(most, load[shard[i]]);
            }
    }
    p->flat_numel = begin + nshards * meg_round_up(most, 128);
    free(load);
    free(shard);
}

/*
 * End the current bucket, whose last parameter is `last`, unless it is empty.  With a distributed optimizer, pad it, as
 * Megatron does, to a multiple of 128 elements and of the number of shards.
 */
static void end_bucket(struct meg_params *p, const struct meg_layout *l, const struct meg_param *last)
{
    const int64_t begin = bucket_begin(p), nshards = meg_layout_num_shards(l, last->dp_group);

    if (p->flat_numel == begin)
        return;
    if (l->zero.nshards && l->zero.has_complete_params)
        keep_params_complete(p, l, (int)nshards);
    if (l->zero.nshards)
        p->flat_numel = begin + meg_round_up(p->flat_numel - begin, meg_lcm64(nshards, 128));
    p->bucket = meg_realloc_array(p->bucket, (size_t)p->nbuckets + 1, sizeof *p->bucket);
    p->bucket[p->nbuckets++] =
        (struct meg_bucket){ .range = { begin, p->flat_numel }, last->dp_group, last->layer_group };
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
    p->flat_numel += meg_round_up(stored_numel(row, &mesh->layout), MEG_PARAM_ALIGN);
}

/*
 * Append the parameters of a class to the flat buffer.  Divide them into buckets if they have gradients or are sharded.
 * With ZeRO-2 and ZeRO-3, append the experts of a layer group after its dense parameters.
 */
static void append_rows(struct meg_params *p, const struct meg_mesh *mesh, bool is_frozen, bool is_f32)
{
    const int stage = mesh->layout.zero.stage, npasses = stage >= 2 ? MEG_DP_GROUPS : 1;
    const bool has_buckets = !is_frozen || stage == 3;
    const struct meg_param *last = NULL;

    for (int k = npasses * p->nlayer_groups - 1; k >= 0; k--) {
        const int group = k / npasses, dp_group = npasses - 1 - k % npasses;
        for (int i = p->first_row[group + 1] - 1; i >= p->first_row[group]; i--) {
            struct meg_param *row = &p->row[i];

            if (row->is_frozen != is_frozen || row->is_f32 != is_f32 || (npasses > 1 && (int)row->dp_group != dp_group))
                continue;
            if (has_buckets && bucket_ends_before(p, row, last, mesh))
                end_bucket(p, &mesh->layout, last);
            last = row;
            append_row(p, row, mesh);
        }
    }
    if (last && has_buckets)
        end_bucket(p, &mesh->layout, last);
}

static int bucket_of(const struct meg_params *p, const struct meg_param *row)
{
    int b = 0;

    while (p->bucket[b].range.end <= row->offset)
        b++;
    MEG_ASSERT_LT(b, p->nbuckets);
    return b;
}

static bool is_f32(const struct meg_params *p, int64_t i)
{
    return (p->f32[0].begin <= i && i < p->f32[0].end) || (p->f32[1].begin <= i && i < p->f32[1].end);
}

/* Compute the positions of the buckets in the unsharded buffers, each of which has the size of its largest group. */
static void lay_out_unsharded(struct meg_params *p)
{
    int64_t(*numel)[MEG_UNSHARDED_TYPES] = meg_new((size_t)p->nlayer_groups * sizeof *numel);
    int64_t begin[MEG_UNSHARDED_BUFFERS + 1][MEG_UNSHARDED_TYPES] = { 0 };

    for (int b = 0; b < p->nbuckets; b++) {
        struct meg_bucket *q = &p->bucket[b];
        int64_t *n = numel[q->layer_group], *next = begin[1 + meg_unsharded_buffer(p, q->layer_group)];

        memcpy(q->unsharded, n, sizeof q->unsharded);
        n[is_f32(p, q->range.begin) ? MEG_UNSHARDED_F32 : MEG_UNSHARDED_PARAMS] += q->range.end - q->range.begin;
        if (q->range.begin < p->grad_numel)
            n[MEG_UNSHARDED_GRADS] += q->range.end - q->range.begin;
        for (int k = 0; k < MEG_UNSHARDED_TYPES; k++)
            next[k] = meg_max64(next[k], n[k]);
    }
    for (int k = 0; k < MEG_UNSHARDED_TYPES; k++) {
        for (int i = 0; i < MEG_UNSHARDED_BUFFERS; i++)
            begin[i + 1][k] += begin[i][k];
        for (int b = 0; b < p->nbuckets; b++)
            p->bucket[b].unsharded[k] += begin[meg_unsharded_buffer(p, p->bucket[b].layer_group)][k];
        p->unsharded[k] = begin[MEG_UNSHARDED_BUFFERS][k];
    }
    free(numel);
}

/* Return the index of a parameter's first gradient in the unsharded buffers. */
static int64_t unsharded_grad(const struct meg_params *p, const struct meg_param *row)
{
    const struct meg_bucket *b = &p->bucket[bucket_of(p, row)];

    return b->unsharded[MEG_UNSHARDED_GRADS] + row->offset - b->range.begin;
}

void meg_params_shard(struct meg_params *p, const struct meg_mesh *mesh)
{
    p->flat_numel = 0;
    p->nbuckets = 0;
    p->layer_group = meg_realloc_array(p->layer_group, (size_t)p->nlayer_groups, sizeof *p->layer_group);
    memset(p->layer_group, 0, (size_t)p->nlayer_groups * sizeof *p->layer_group);
    for (int i = 0; i < p->n; i++) {
        p->row[i].offset = -1;
        p->row[i].dp_group = meg_layout_has_expert_groups(&mesh->layout) && meg_param_is_expert(&p->row[i])
                                 ? MEG_DP_EXPERT
                                 : MEG_DP_DENSE;
    }
    list_first_rows(p);
    append_rows(p, mesh, false, false);
    p->f32[0].begin = p->flat_numel;
    append_rows(p, mesh, false, true);
    p->f32[0].end = p->grad_numel = p->flat_numel;
    append_rows(p, mesh, true, false);
    p->f32[1].begin = p->flat_numel;
    append_rows(p, mesh, true, true);
    p->f32[1].end = p->flat_numel;
    index_names(p);
    if (mesh->layout.zero.stage >= 2)
        lay_out_unsharded(p);
    for (int i = p->n - 1; i >= 0; i--) {
        struct meg_param *row = &p->row[i];
        struct meg_elem_range *range = &p->layer_group[row->layer_group];

        if (row->shard_numel == 0 || row->is_frozen)
            continue;
        row->grad_offset = mesh->layout.zero.stage >= 2 ? unsharded_grad(p, row) : row->offset;
        if (row->is_f32)
            continue;
        range->begin = range->end ? meg_min64(range->begin, row->offset) : row->offset;
        range->end = meg_max64(range->end, row->offset + row->shard_numel);
    }
}

enum meg_dtype meg_params_dtype(const struct meg_params *p, int64_t i, enum meg_dtype dtype)
{
    return is_f32(p, i) ? MEG_DTYPE_F32 : dtype;
}

/* Return the number of elements in f32 before element i of the flat buffer. */
static int64_t num_f32(const struct meg_params *p, int64_t i)
{
    int64_t n = 0;

    for (int k = 0; k < 2; k++)
        n += meg_max64(0, meg_min64(i, p->f32[k].end) - p->f32[k].begin);
    return n;
}

void *meg_params_shard_element(const struct meg_params *p, const struct meg_elem_range *range, int n, const void *w,
                               int64_t i, enum meg_dtype dtype)
{
    int64_t nf32 = 0;

    for (int64_t k = 0, left = i; k < n && left > 0; k++) {
        const int64_t numel = meg_min64(left, range[k].end - range[k].begin);

        nf32 += num_f32(p, range[k].begin + numel) - num_f32(p, range[k].begin);
        left -= numel;
    }
    return meg_element(meg_element(w, i - nf32, dtype), nf32, MEG_DTYPE_F32);
}

void *meg_params_element(const struct meg_params *p, const void *w, int64_t i, enum meg_dtype dtype)
{
    return meg_params_shard_element(p, &(struct meg_elem_range){ 0, p->flat_numel }, 1, w, i, dtype);
}

size_t meg_params_nbytes(const struct meg_params *p, enum meg_dtype dtype)
{
    const int64_t n = num_f32(p, p->flat_numel);

    return (size_t)(p->flat_numel - n) * meg_dtype_size(dtype) + (size_t)n * sizeof(float);
}

int meg_unsharded_buffer(const struct meg_params *p, int layer_group)
{
    if (layer_group == 0)
        return 0;
    return layer_group == p->nlayer_groups - 1 ? 1 : 2 + layer_group % 2;
}

static size_t unsharded_nbytes(const int64_t numel[MEG_UNSHARDED_TYPES], enum meg_dtype dtype)
{
    return (size_t)numel[MEG_UNSHARDED_PARAMS] * meg_dtype_size(dtype) +
           (size_t)numel[MEG_UNSHARDED_F32] * sizeof(float);
}

size_t meg_params_unsharded_nbytes(const struct meg_params *p, enum meg_dtype dtype)
{
    return unsharded_nbytes(p->unsharded, dtype);
}

void *meg_params_unsharded_bucket(const struct meg_params *p, const void *w, int b, enum meg_dtype dtype)
{
    return (char *)w + unsharded_nbytes(p->bucket[b].unsharded, dtype);
}

void *meg_params_unsharded_element(const struct meg_params *p, const void *w, const struct meg_param *row,
                                   enum meg_dtype dtype)
{
    const int b = bucket_of(p, row);

    return meg_element(meg_params_unsharded_bucket(p, w, b, dtype), row->offset - p->bucket[b].range.begin,
                       meg_param_dtype(row, dtype));
}
