/*
 * nan_guard.h - find the first parameter whose gradient on this rank is NaN or Inf, before a reduction spreads the NaN
 * or Inf to all ranks.
 */
#ifndef MEG_OPTIM_NAN_GUARD_H
#define MEG_OPTIM_NAN_GUARD_H
#include "device/device.h"
#include "model/param.h"

MEG_BEGIN_DECLS

struct meg_nan_guard {
    const struct meg_params *params;
    const struct meg_device *device;
    double *sum; /* sum of squares, in device memory */
    bool is_on;
    const struct meg_param *found; /* first parameter with a NaN or Inf gradient, or NULL */
};

/* Check the gradients g of a layer group, unless the guard is off or has already found a parameter. */
void meg_nan_guard_check(struct meg_nan_guard *w, int group, const void *g, enum meg_dtype dtype);

MEG_END_DECLS
#endif
