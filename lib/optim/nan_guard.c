/* nan_guard.c - check gradients by their sum of squares, then parameter by parameter. */
#include "optim/nan_guard.h"
#include <math.h>

static bool is_finite(struct meg_nan_guard *w, const void *g, enum meg_dtype dtype, int64_t first, int64_t n)
{
    double sum;

    w->device->op->sumsq(w->device->compute, w->sum, (const char *)g + (size_t)first * meg_dtype_size(dtype), dtype, n);
    meg_device_read(w->device, w->device->compute, &sum, w->sum, sizeof sum);
    return isfinite(sum);
}

void meg_nan_guard_check(struct meg_nan_guard *w, int group, const void *g, enum meg_dtype dtype)
{
    const struct meg_elem_range s = w->params->layer_group[group];

    if (!w->is_on || w->found || s.begin == s.end || is_finite(w, g, dtype, 0, s.end - s.begin))
        return;
    for (int i = w->params->n; i-- > 0 && !w->found;) {
        const struct meg_param *row = &w->params->row[i];

        if (row->layer_group == group && row->shard_numel &&
            !is_finite(w, g, dtype, row->offset - s.begin, row->shard_numel))
            w->found = row;
    }
}
