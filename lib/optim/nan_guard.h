/*
 * nan_guard.h - find the first parameter, in backward order, whose gradient on this rank has a NaN or Inf.  The check
 * precedes the reduction of the gradient, which would spread the NaN or Inf to other ranks.
 */
#pragma once
#include "device/device.h"
#include "params/param.h"

struct meg_nan_guard {
    const struct meg_params *params;
    const struct meg_device *device;
    double *sums; /* [params->n] sum of squares of each parameter's gradient, in device memory; see meg_step_finish */
    struct meg_range *ranges; /* [params->n] the gradients of each parameter (grad_offset), in device memory */
    bool is_on;
};

/* Allocate the arrays in device memory.  Return MEG_EFAIL, without a message, if memory is exhausted. */
int meg_nan_guard_init(struct meg_nan_guard *w, const struct meg_params *params, const struct meg_device *device);
void meg_nan_guard_free(struct meg_nan_guard *w);

/* Begin a step.  If is_on is false, this step's gradients are not checked. */
void meg_nan_guard_begin(struct meg_nan_guard *w, bool is_on);
/* If is_on, queue the check of a layer group: add the sum of squares of each parameter's gradient in g to `sums`. */
void meg_nan_guard_check(struct meg_nan_guard *w, int group, const void *g, enum meg_dtype dtype);
MEG_END_DECLS
