/* tp_grads.c - all-reduce the gradients of replicated parameters over the tensor-parallel ranks. */
#include "optim/zero/tp_grads.h"
#include <stdlib.h>
#include "base/int64.h"
#include "base/mem.h"

/* Append the summed ranges of a parameter, and return their number of elements. */
static int64_t add_ranges(struct meg_tp_grads *s, int *n, const struct meg_param *row, const struct meg_layout *l)
{
    int64_t numel = 0;

    for (int64_t i = 0; i < meg_param_num_spans(row); i++) {
        const struct meg_param_span span = meg_param_span_at(row, i);

        if (!meg_param_sums_grad_over_tp(row, &span, l))
            continue;
        s->range = meg_realloc_array(s->range, (size_t)*n + 1, sizeof *s->range);
        s->range[(*n)++] = (struct meg_elem_range){ row->grad_offset + span.begin, row->grad_offset + span.end };
        numel += span.end - span.begin;
    }
    return numel;
}

int meg_tp_grads_init(struct meg_tp_grads *s, const struct meg_mesh *mesh, const struct meg_params *p,
                      const struct meg_device *device, enum meg_dtype dtype)
{
    int64_t most = 0; /* elements of a layer group with several ranges */
    int n = 0;

    *s = (struct meg_tp_grads){ .tp = mesh->tp, .device = device, .dtype = dtype };
    s->first_range = meg_new((size_t)(p->nlayer_groups + 1) * sizeof *s->first_range);
    for (int group = 0; group < p->nlayer_groups; group++) {
        int64_t numel = 0;

        for (int i = p->first_row[group]; i < p->first_row[group + 1]; i++)
            numel += add_ranges(s, &n, &p->row[i], &mesh->layout);
        if (n - s->first_range[group] > 1)
            most = meg_max64(most, numel);
        s->first_range[group + 1] = n;
    }
    if (most && !(s->packed = device->op->alloc((size_t)most * meg_dtype_size(dtype))))
        return MEG_EFAIL;
    return 0;
}

void meg_tp_grads_free(struct meg_tp_grads *s)
{
    free(s->range);
    free(s->first_range);
    if (s->packed)
        s->device->op->release(s->packed);
}

/* Copy the summed gradients of a layer group from g to s->packed, or back.  Return their number. */
static int64_t copy(const struct meg_tp_grads *s, int group, void *g, bool is_back)
{
    int64_t numel = 0;

    for (int i = s->first_range[group]; i < s->first_range[group + 1]; i++) {
        const int64_t n = s->range[i].end - s->range[i].begin;
        void *packed = meg_element(s->packed, numel, s->dtype), *grad = meg_element(g, s->range[i].begin, s->dtype);

        s->device->op->copy(s->device->compute, is_back ? grad : packed, is_back ? packed : grad,
                            (size_t)n * meg_dtype_size(s->dtype));
        numel += n;
    }
    return numel;
}

void meg_tp_grads_reduce(const struct meg_tp_grads *s, int group, void *g)
{
    const int n = s->first_range[group + 1] - s->first_range[group];

    if (n == 1) {
        const struct meg_elem_range r = s->range[s->first_range[group]];

        meg_all_reduce(s->tp, s->device->compute, meg_element(g, r.begin, s->dtype), r.end - r.begin, s->dtype,
                       MEG_REDUCE_SUM);
    } else if (n > 1) {
        meg_all_reduce(s->tp, s->device->compute, s->packed, copy(s, group, g, false), s->dtype, MEG_REDUCE_SUM);
        copy(s, group, g, true);
    }
}
