/* nan_guard.c - sum the squares of each parameter's gradient on the device. */
#include "optim/nan_guard.h"

void meg_nan_guard_begin(struct meg_nan_guard *w, bool is_on)
{
    w->is_on = is_on;
    if (is_on)
        w->device->op->zero(w->device->compute, w->sums, (size_t)w->params->n * sizeof *w->sums);
}

void meg_nan_guard_check(struct meg_nan_guard *w, int group, const void *g, enum meg_dtype dtype)
{
    const int64_t begin = w->params->layer_group[group].begin;

    for (int i = w->params->first_row[group]; i < w->params->first_row[group + 1] && w->is_on; i++) {
        const struct meg_param *row = &w->params->row[i];

        if (row->shard_numel)
            w->device->op->sumsq(w->device->compute, w->sums + i,
                                 (const char *)g + (size_t)(row->offset - begin) * meg_dtype_size(dtype), dtype,
                                 row->shard_numel);
    }
}
