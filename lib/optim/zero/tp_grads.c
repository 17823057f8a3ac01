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
    const struct meg_layout *l = &mesh->layout;
    int64_t most = 0; /* elements of an all-reduce with several ranges */
    int n = 0;

    *s = (struct meg_tp_grads){ .comm = { mesh->tp, mesh->etp }, .device = device, .dtype = dtype };
    s->first_range = meg_new((size_t)(2 * p->nlayer_groups + 1) * sizeof *s->first_range);
    for (int k = 0; k < 2 * p->nlayer_groups; k++) {
        int64_t numel = 0;

        for (int i = p->first_row[k / 2]; i < p->first_row[k / 2 + 1]; i++)
            if (k % 2 == (l->etp != l->tp && meg_param_is_expert(&p->row[i])))
                numel += add_ranges(s, &n, &p->row[i], l);
        if (n - s->first_range[k] > 1)
            most = meg_max64(most, numel);
        s->first_range[k + 1] = n;
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

/* Copy the gradients of an all-reduce (index in first_range) from g to s->packed, or back.  Return their number. */
static int64_t copy(const struct meg_tp_grads *s, int k, void *g, bool is_back)
{
    int64_t numel = 0;

    for (int i = s->first_range[k]; i < s->first_range[k + 1]; i++) {
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
    for (int k = 2 * group; k < 2 * group + 2; k++) {
        const int n = s->first_range[k + 1] - s->first_range[k];
        struct meg_comm *comm = s->comm[k % 2];

        if (n == 1) {
            const struct meg_elem_range r = s->range[s->first_range[k]];

            meg_all_reduce(comm, s->device->compute, meg_element(g, r.begin, s->dtype), r.end - r.begin, s->dtype,
                           MEG_REDUCE_SUM);
        } else if (n > 1) {
            meg_all_reduce(comm, s->device->compute, s->packed, copy(s, k, g, false), s->dtype, MEG_REDUCE_SUM);
            copy(s, k, g, true);
        }
    }
}
