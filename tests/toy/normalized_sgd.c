/*
 * normalized_sgd.c - an optimizer for tests/complete_params.t that is not in the library: SGD with momentum, whose
 * learning rate is divided by the Frobenius norm of the gradient of the parameter.  It runs on the CPU.  A program that
 * is linked with this file accepts --optimizer normalized-sgd.
 */
#include <math.h>
#include "optim/optim.h"
#include "placement/placement.h"

enum { MAX_RANGES = 256 };

/* Add the squares of the gradients of a range to *sum, on one of the tensor-parallel ranks that have replicas of it. */
static void add_squares(const struct meg_optim *o, double *sum, const struct meg_update_arrays *x,
                        const struct meg_update_range *range)
{
    const struct meg_param *row = &o->params->row[range->row];

    for (int64_t i = 0; i < meg_param_num_spans(row); i++) {
        const struct meg_param_span span = meg_param_span_at(row, i);
        const bool is_replica = span.is_tp_replica && o->mesh->tp->size > 1;

        if (span.base != range->base)
            continue;
        if (!is_replica || o->mesh->tp->rank == 0)
            MEG_CALL(o->op, o->stream, sumsq, .out = sum, .x = meg_element(x->g.p, range->begin, x->g.dtype),
                     .type = x->g.dtype, .n = range->end - range->begin);
        if (is_replica)
            meg_placement_declare(sum, sizeof *sum, o->mesh->tp, MEG_PLACEMENT_REPLICATED, MEG_PLACEMENT_PARTIAL);
    }
}

static void update(const struct meg_optim *o, const struct meg_update_arrays *x, const struct meg_update_range *range,
                   int nranges)
{
    static double sum[MAX_RANGES]; /* of the squares of each parameter's gradients, in its first range */
    static struct meg_update_range scaled[MAX_RANGES];
    int first = 0; /* first range of the parameter */

    MEG_ASSERT(o->op->is_host_memory && nranges <= MAX_RANGES);
    o->op->zero(o->stream, sum, sizeof sum);
    for (int i = 0; i < nranges; i++) {
        first = i && range[i].row == range[i - 1].row ? first : i;
        add_squares(o, &sum[first], x, &range[i]);
    }
    if (nranges)
        meg_all_reduce(o->mesh->tp, o->stream, sum, nranges, MEG_DTYPE_F64, MEG_REDUCE_SUM);
    for (int i = 0; i < nranges; i++) {
        first = i && range[i].row == range[i - 1].row ? first : i;
        scaled[i] = range[i];
        scaled[i].lr_mult = (float)(1 / (sqrt(sum[first]) * o->record->hparams.grad_scale + 1e-6));
    }
    MEG_CALL(o->op, o->stream, sgd, .arrays = x, .range = scaled, .nranges = nranges, .momentum = o->momentum,
             .step = &o->record->hparams);
}

__attribute__((constructor)) static void add_normalized_sgd(void)
{
    meg_optimizer_add(&(struct meg_optimizer){ .name = "normalized-sgd",
                                               .nstates = 1,
                                               .state = { { "momentum_buffer", 0 } },
                                               .needs_complete_params = true,
                                               .update = update });
}
