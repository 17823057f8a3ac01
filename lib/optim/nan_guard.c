/* nan_guard.c - sum the squares of each parameter's gradient on the device. */
#include "optim/nan_guard.h"
#include <stdlib.h>
#include "base/mem.h"

/* Return the first element of the gradients of a layer group that this rank has; -1 if there is none. */
static int64_t first_grad(const struct meg_params *p, int group)
{
    int64_t first = -1;

    for (int i = p->first_row[group]; i < p->first_row[group + 1]; i++) {
        const struct meg_param *row = &p->row[i];

        if (row->shard_numel > 0 && !row->is_frozen && (first < 0 || row->grad_offset < first))
            first = row->grad_offset;
    }
    return first;
}

/* The ranges begin at the first gradient of the group: collectives of other groups may not be complete. */
static void upload_ranges(struct meg_nan_guard *w)
{
    const struct meg_params *p = w->params;
    struct meg_range *range = meg_new((size_t)p->n * sizeof *range);

    for (int group = 0; group < p->nlayer_groups; group++) {
        const int64_t first = first_grad(p, group);

        for (int i = p->first_row[group]; i < p->first_row[group + 1]; i++) {
            range[i].begin = p->row[i].grad_offset - first;
            range[i].end = range[i].begin + (p->row[i].is_frozen ? 0 : p->row[i].shard_numel);
        }
    }
    w->device->op->upload(w->device->compute, w->ranges, range, (size_t)p->n * sizeof *range);
    free(range);
}

int meg_nan_guard_init(struct meg_nan_guard *w, const struct meg_params *params, const struct meg_device *device)
{
    const size_t n = (size_t)params->n;

    *w = (struct meg_nan_guard){ .params = params, .device = device };
    w->sums = device->op->alloc(n * sizeof *w->sums);
    w->ranges = device->op->alloc(n * sizeof *w->ranges);
    if (!w->sums || !w->ranges)
        return MEG_EFAIL;
    upload_ranges(w);
    return 0;
}

void meg_nan_guard_free(struct meg_nan_guard *w)
{
    if (!w->device)
        return;
    w->device->op->release(w->sums);
    w->device->op->release(w->ranges);
}

void meg_nan_guard_begin(struct meg_nan_guard *w, bool is_on)
{
    w->is_on = is_on;
    if (is_on)
        w->device->op->zero(w->device->compute, w->sums, (size_t)w->params->n * sizeof *w->sums);
}

void meg_nan_guard_check(struct meg_nan_guard *w, int group, const void *g, enum meg_dtype dtype)
{
    const int row = w->params->first_row[group], n = w->params->first_row[group + 1] - row;
    const int64_t first = first_grad(w->params, group);

    if (w->is_on && first >= 0)
        MEG_CALL(w->device->op, w->device->compute, sumsq_ranges, .out = w->sums + row,
                 .x = meg_element(g, first, dtype), .type = dtype, .range = w->ranges + row, .nranges = n);
}
