/*
 * shard_ranges.c - list the elements of a tensor that a checkpoint shard contains: this rank's shard of the parameter,
 * intersected with the ranges of the checkpoint shard.
 */
#include "ckpt/internal.h"

/* Return the index of the first range of a parameter's shard that ends after element `at` of the tensor. */
static int64_t find_range(const struct meg_param *row, int64_t at)
{
    int64_t begin = 0, end = meg_param_num_shard_ranges(row);

    while (begin < end) {
        const int64_t middle = begin + (end - begin) / 2;
        const struct meg_param_shard_range range = meg_param_shard_range_at(row, middle);

        if (range.global + range.n <= at)
            begin = middle + 1;
        else
            end = middle;
    }
    return begin;
}

void ckpt_range_iter_begin(struct ckpt_range_iter *it, const struct meg_params *p, const struct meg_ckpt_shard *shard,
                           const struct meg_param *row, int64_t first, int64_t n)
{
    it->row = row;
    it->full = (struct meg_elem_range){ 0, p->flat_numel };
    it->range = shard->ranges ? shard->ranges : &it->full;
    it->nranges = shard->ranges ? shard->nranges : 1;
    it->skipped = 0;
    it->i = find_range(row, first);
    it->num_param_ranges = meg_param_num_shard_ranges(row);
    it->at = first;
    it->end = first + n;
}

bool ckpt_range_iter_next(struct ckpt_range_iter *it, struct ckpt_shard_range *out)
{
    for (; it->i < it->num_param_ranges; it->i++) {
        const struct meg_param_shard_range block = meg_param_shard_range_at(it->row, it->i);
        const int64_t first = it->at > block.global ? it->at : block.global,
                      last = it->end < block.global + block.n ? it->end : block.global + block.n;
        const int64_t shift =
            it->row->offset + block.local - block.global; /* add to a tensor offset to get its flat buffer offset */

        if (block.global >= it->end)
            return false;
        while (it->nranges && it->range->end <= first + shift) {
            it->skipped += it->range->end - it->range->begin;
            it->range++;
            it->nranges--;
        }
        if (!it->nranges)
            return false;
        out->tensor_offset = first + shift > it->range->begin ? first : it->range->begin - shift;
        out->n = (last + shift < it->range->end ? last : it->range->end - shift) - out->tensor_offset;
        out->shard_offset = it->skipped + out->tensor_offset + shift - it->range->begin;
        out->is_tp_replica = block.is_tp_replica;
        if (out->n > 0) {
            it->at = out->tensor_offset + out->n;
            return true;
        }
    }
    return false;
}

static int64_t shard_numel(const struct meg_params *p, const struct meg_ckpt_shard *shard)
{
    int64_t n = shard->ranges ? 0 : shard->name ? p->grad_numel : p->flat_numel;

    for (int i = 0; shard->ranges && i < shard->nranges; i++)
        n += shard->ranges[i].end - shard->ranges[i].begin;
    return n;
}

void ckpt_write_ranges(struct meg_elem_range write[MEG_DP_GROUPS], const struct meg_params *p,
                       const struct meg_mesh *mesh, const struct meg_ckpt_shard *shard)
{
    const struct meg_layout *l = &mesh->layout;
    const int64_t n = shard_numel(p, shard), blocks = (n + MEG_PARAM_ALIGN - 1) / MEG_PARAM_ALIGN;

    for (int i = 0; i < MEG_DP_GROUPS; i++) {
        const enum meg_dp_group group = (enum meg_dp_group)i;
        const int64_t nreplicas = shard->ranges ? shard->nreplicas : meg_layout_dp_size(l, group);
        const int64_t replica = shard->ranges ? shard->replica : meg_layout_dp_rank(l, mesh->coords, group);

        write[i] = (struct meg_elem_range){ 0, n };
        if (nreplicas > 1) {
            write[i].begin = meg_partition_begin(blocks, nreplicas, replica) * MEG_PARAM_ALIGN;
            write[i].end = meg_partition_begin(blocks, nreplicas, replica + 1) * MEG_PARAM_ALIGN;
        }
        if (write[i].end > n)
            write[i].end = n;
    }
}

bool ckpt_clip_range(struct ckpt_shard_range *s, struct meg_elem_range write)
{
    const int64_t skip = write.begin > s->shard_offset ? write.begin - s->shard_offset : 0;

    s->tensor_offset += skip;
    s->shard_offset += skip;
    s->n -= skip;
    if (s->shard_offset + s->n > write.end)
        s->n = write.end - s->shard_offset;
    return s->n > 0;
}

int64_t meg_ckpt_write_nbytes(const struct meg_params *p, const struct meg_mesh *mesh,
                              const struct meg_ckpt_shard *shard, int n)
{
    int64_t nbytes = 0;

    for (int i = 0; i < n; i++) {
        struct meg_elem_range write[MEG_DP_GROUPS];

        ckpt_write_ranges(write, p, mesh, &shard[i]);
        for (int k = 0; k < p->n; k++) {
            struct ckpt_shard_range s;
            struct ckpt_range_iter it;

            if (!ckpt_has_tensor(&shard[i], &p->row[k]))
                continue;
            ckpt_range_iter_begin(&it, p, &shard[i], &p->row[k], 0, p->row[k].numel);
            while (ckpt_range_iter_next(&it, &s))
                if (meg_param_is_counted(&p->row[k], s.is_tp_replica, mesh) &&
                    ckpt_clip_range(&s, write[p->row[k].dp_group]))
                    nbytes += s.n * (int64_t)meg_dtype_size(ckpt_shard_dtype(&shard[i], &p->row[k]));
        }
    }
    return nbytes;
}
