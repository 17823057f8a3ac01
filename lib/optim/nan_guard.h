/* Finding the parameter whose gradient was not finite on this rank, before sums over ranks hide it. */
#ifndef MEG_OPTIM_NAN_GUARD_H
#define MEG_OPTIM_NAN_GUARD_H
#include "model/param.h"

MEG_BEGIN_DECLS

struct meg_nan_guard {
    const struct meg_params *params;
    const struct meg_ops *op;
    double *sum; /* device memory */
    bool is_on;
    const struct meg_param *found; /* the first that was not finite, or NULL */
};

/* Look at a section's gradients g of type t, if it is on and none is found yet. */
void meg_nan_guard_check(struct meg_nan_guard *w, int section, const void *g, enum meg_dtype t);

MEG_END_DECLS
#endif
