/* tp_grads.c - all-reduce the gradients of replicated parameters over the tensor-parallel ranks. */
#include "optim/zero/tp_grads.h"

/* The gradients of a layer group that are to be summed. */
struct summed {
    int n;                         /* number of parameters */
    int64_t numel;                 /* number of elements */
    const struct meg_param *first; /* first parameter, or NULL */
};

static struct summed summed_of(const struct meg_params *p, const struct meg_layout *l, int group)
{
    struct summed s = { 0 };

    for (int i = p->first_row[group]; i < p->first_row[group + 1]; i++)
        if (meg_param_sums_grad_over_tp(&p->row[i], l)) {
            s.first = s.n++ ? s.first : &p->row[i];
            s.numel += p->row[i].shard_numel;
        }
    return s;
}

int64_t meg_tp_grads_numel(const struct meg_params *p, const struct meg_layout *l)
{
    int64_t max = 0;

    for (int i = 0; i < p->nlayer_groups; i++) {
        const struct summed s = summed_of(p, l, i);

        if (s.n > 1 && s.numel > max)
            max = s.numel;
    }
    return max;
}

/* Return the address of a parameter's gradient in its group, which begins at g. */
static void *grad_of(const struct meg_tp_grads *s, const struct meg_param *row, void *g)
{
    return meg_element(g, row->offset - s->params->layer_group[row->layer_group].begin, s->dtype);
}

/*
 * Copy the gradients of a layer group that are to be summed over the tensor-parallel ranks from g to s->packed, or if
 * is_back is true, from s->packed to g.
 */
static void copy(const struct meg_tp_grads *s, int group, void *g, bool is_back)
{
    const struct meg_params *p = s->params;
    char *packed = s->packed;

    for (int i = p->first_row[group]; i < p->first_row[group + 1]; i++) {
        const struct meg_param *row = &p->row[i];
        const size_t nbytes = (size_t)row->shard_numel * meg_dtype_size(s->dtype);
        void *grad = grad_of(s, row, g);

        if (!meg_param_sums_grad_over_tp(row, &s->mesh->layout))
            continue;
        s->device->op->copy(s->device->compute, is_back ? grad : packed, is_back ? packed : grad, nbytes);
        packed += nbytes;
    }
}

void meg_tp_grads_reduce(const struct meg_tp_grads *s, int group, void *g)
{
    const struct summed sum = summed_of(s->params, &s->mesh->layout, group);

    if (sum.n == 0)
        return;
    if (sum.n > 1)
        copy(s, group, g, false);
    meg_all_reduce(s->mesh->tp, s->device->compute, sum.n > 1 ? s->packed : grad_of(s, sum.first, g), sum.numel,
                   s->dtype, MEG_REDUCE_SUM);
    if (sum.n > 1)
        copy(s, group, g, true);
}
