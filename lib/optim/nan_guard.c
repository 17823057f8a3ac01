#include "optim/nan_guard.h"
#include <math.h>

static bool is_finite(struct meg_nan_guard *w, const void *g, enum meg_dtype t, int64_t first, int64_t n)
{
    double sum;

    w->op->sumsq(NULL, w->sum, (const char *)g + (size_t)first * meg_dtype_size(t), t, n);
    w->op->download(NULL, &sum, w->sum, sizeof sum);
    return isfinite(sum);
}

void meg_nan_guard_check(struct meg_nan_guard *w, int section, const void *g, enum meg_dtype t)
{
    const struct meg_elem_range s = w->params->layer_group[section];

    if (!w->is_on || w->found || s.begin == s.end || is_finite(w, g, t, 0, s.end - s.begin))
        return;
    for (int i = w->params->n; i-- > 0 && !w->found;) {
        const struct meg_param *row = &w->params->row[i];

        if (row->layer_group == section && row->shard_numel &&
            !is_finite(w, g, t, row->offset - s.begin, row->shard_numel))
            w->found = row;
    }
}
