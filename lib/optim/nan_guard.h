/*
 * nan_guard.h - find the parameter whose gradient is NaN or Inf on this rank, before a reduction hides which rank it
 * was.
 */
#ifndef MEG_OPTIM_NAN_GUARD_H
#define MEG_OPTIM_NAN_GUARD_H
#include "model/param.h"

MEG_BEGIN_DECLS

struct meg_nan_guard {
    const struct meg_params *params;
    const struct meg_ops *op;
    double *sum; /* device memory */
    bool is_on;
    const struct meg_param *found; /* the first with a NaN or Inf, or NULL */
};

/* Check the gradients g of a layer group, unless the guard is off or has found one already. */
void meg_nan_guard_check(struct meg_nan_guard *w, int group, const void *g, enum meg_dtype dtype);

MEG_END_DECLS
#endif
