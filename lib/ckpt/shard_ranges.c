/* Which elements of a tensor a slot holds, and where: a row's box, in runs, cut by the slot's spans. */
#include "ckpt/internal.h"

void ckpt_range_iter_begin(struct ckpt_range_iter *w, const struct meg_params *p, const struct meg_ckpt_shard *slot,
                           const struct meg_param *row, int64_t first, int64_t n)
{
    const int64_t runs = meg_param_num_shard_ranges(row);

    w->row = row;
    w->full = (struct meg_elem_range){ 0, p->flat_numel };
    w->range = slot->ranges ? slot->ranges : &w->full;
    w->nranges = slot->ranges ? slot->nranges : 1;
    w->skipped = 0;
    w->period = runs ? row->numel / runs : 1;
    w->at = first;
    w->end = runs ? first + n : first;
}

bool ckpt_range_iter_next(struct ckpt_range_iter *w, struct ckpt_shard_range *out)
{
    while (w->at < w->end) {
        const int64_t i = w->at / w->period;
        const struct meg_param_shard_range run = meg_param_shard_range_at(w->row, i);
        const int64_t first = w->at > run.global ? w->at : run.global,
                      last = w->end < run.global + run.n ? w->end : run.global + run.n;
        const int64_t shift = w->row->offset + run.local - run.global; /* from the tensor to the flat buffer */

        if (first >= last) {
            w->at = (i + 1) * w->period;
            continue;
        }
        while (w->nranges && w->range->end <= first + shift) {
            w->skipped += w->range->end - w->range->begin;
            w->range++;
            w->nranges--;
        }
        if (!w->nranges)
            return false;
        out->tensor_offset = first + shift > w->range->begin ? first : w->range->begin - shift;
        out->n = (last + shift < w->range->end ? last : w->range->end - shift) - out->tensor_offset;
        out->shard_offset = w->skipped + out->tensor_offset + shift - w->range->begin;
        if (out->n > 0) {
            w->at = out->tensor_offset + out->n;
            return true;
        }
        w->at = (i + 1) * w->period;
    }
    return false;
}

/* Elements of a slot on this rank. */
static int64_t held(const struct meg_params *p, const struct meg_ckpt_shard *slot)
{
    int64_t n = slot->ranges ? 0 : p->flat_numel;

    for (int i = 0; slot->ranges && i < slot->nranges; i++)
        n += slot->ranges[i].end - slot->ranges[i].begin;
    return n;
}

struct meg_elem_range ckpt_write_range(const struct meg_params *p, const struct meg_mesh *mesh,
                                       const struct meg_ckpt_shard *slot)
{
    const struct meg_layout *l = &mesh->layout;
    const int64_t n = held(p, slot), blocks = (n + MEG_PARAM_ALIGN - 1) / MEG_PARAM_ALIGN;
    const int64_t copies = slot->ranges ? slot->nreplicas : l->dp * l->cp;
    const int64_t copy = slot->ranges ? slot->replica : mesh->coords.dp * l->cp + mesh->coords.cp;
    struct meg_elem_range share = { 0, n };

    if (copies > 1) {
        share.begin = meg_partition_begin(blocks, copies, copy) * MEG_PARAM_ALIGN;
        share.end = meg_partition_begin(blocks, copies, copy + 1) * MEG_PARAM_ALIGN;
    }
    if (share.end > n)
        share.end = n;
    return share;
}

bool ckpt_clip_range(struct ckpt_shard_range *s, struct meg_elem_range share)
{
    const int64_t skip = share.begin > s->shard_offset ? share.begin - s->shard_offset : 0;

    s->tensor_offset += skip;
    s->shard_offset += skip;
    s->n -= skip;
    if (s->shard_offset + s->n > share.end)
        s->n = share.end - s->shard_offset;
    return s->n > 0;
}

int64_t meg_ckpt_write_nbytes(const struct meg_params *p, const struct meg_mesh *mesh,
                              const struct meg_ckpt_shard *slot, int n)
{
    int64_t nbytes = 0;

    for (int i = 0; i < n; i++) {
        const struct meg_elem_range share = ckpt_write_range(p, mesh, &slot[i]);

        for (int k = 0; k < p->n; k++) {
            struct ckpt_shard_range s;
            struct ckpt_range_iter w;

            if (!meg_param_is_counted(&p->row[k], mesh))
                continue;
            ckpt_range_iter_begin(&w, p, &slot[i], &p->row[k], 0, p->row[k].numel);
            while (ckpt_range_iter_next(&w, &s))
                if (ckpt_clip_range(&s, share))
                    nbytes += s.n * (int64_t)meg_dtype_size(slot[i].dtype);
        }
    }
    return nbytes;
}
