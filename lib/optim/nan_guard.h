/*
 * nan_guard.h - find the first parameter, in backward order, whose gradient on this rank has a NaN or Inf, before a
 * reduction spreads the NaN or Inf to all ranks.
 */
#ifndef MEG_OPTIM_NAN_GUARD_H
#define MEG_OPTIM_NAN_GUARD_H
#include "device/device.h"
#include "model/param.h"

MEG_BEGIN_DECLS

struct meg_nan_guard {
    const struct meg_params *params;
    const struct meg_device *device;
    double *sums; /* [params->n] sum of squares of each gradient, in device memory */
    bool is_on;
};

/* Begin a step, without checks if is_on is false. */
void meg_nan_guard_begin(struct meg_nan_guard *w, bool is_on);
/* Queue the check of the gradients g of a layer group; the host does not wait. */
void meg_nan_guard_check(struct meg_nan_guard *w, int group, const void *g, enum meg_dtype dtype);
/*
 * Wait for the checks of this step, and return the last parameter of the table whose gradient has a NaN or Inf, or
 * NULL.
 */
const struct meg_param *meg_nan_guard_found(const struct meg_nan_guard *w);

MEG_END_DECLS
#endif
