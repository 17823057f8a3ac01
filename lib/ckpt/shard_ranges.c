/* Which elements of a tensor a slot holds, and where: a row's box, in runs, cut by the slot's spans. */
#include "ckpt/internal.h"

void ckpt_range_iter_begin(struct ckpt_range_iter *w, const struct meg_params *p, const struct meg_ckpt_shard *slot,
                           const struct meg_param *row, int64_t first, int64_t n)
{
    const int64_t runs = meg_param_num_shard_ranges(row);

    w->row = row;
    w->whole = (struct meg_elem_range){ 0, p->flat };
    w->span = slot->span ? slot->span : &w->whole;
    w->nspans = slot->span ? slot->nspans : 1;
    w->before = 0;
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
        while (w->nspans && w->span->end <= first + shift) {
            w->before += w->span->end - w->span->begin;
            w->span++;
            w->nspans--;
        }
        if (!w->nspans)
            return false;
        out->global = first + shift > w->span->begin ? first : w->span->begin - shift;
        out->n = (last + shift < w->span->end ? last : w->span->end - shift) - out->global;
        out->at = w->before + out->global + shift - w->span->begin;
        if (out->n > 0) {
            w->at = out->global + out->n;
            return true;
        }
        w->at = (i + 1) * w->period;
    }
    return false;
}

/* Elements of a slot on this rank. */
static int64_t held(const struct meg_params *p, const struct meg_ckpt_shard *slot)
{
    int64_t n = slot->span ? 0 : p->flat;

    for (int i = 0; slot->span && i < slot->nspans; i++)
        n += slot->span[i].end - slot->span[i].begin;
    return n;
}

struct meg_elem_range ckpt_write_range(const struct meg_params *p, const struct meg_mesh *mesh,
                                       const struct meg_ckpt_shard *slot)
{
    const struct meg_layout *l = &mesh->layout;
    const int64_t n = held(p, slot), blocks = (n + MEG_PARAM_ALIGN - 1) / MEG_PARAM_ALIGN;
    const int64_t copies = slot->span ? slot->copies : l->dp * l->cp;
    const int64_t copy = slot->span ? slot->copy : mesh->at.dp * l->cp + mesh->at.cp;
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
    const int64_t skip = share.begin > s->at ? share.begin - s->at : 0;

    s->global += skip;
    s->at += skip;
    s->n -= skip;
    if (s->at + s->n > share.end)
        s->n = share.end - s->at;
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
