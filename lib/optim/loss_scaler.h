/*
 * loss_scaler.h - loss scaling for f16 (Micikevicius et al. 2018).
 *
 * Small gradients underflow in f16.  The loss is therefore multiplied by a scale before the backward pass, and the
 * gradients are divided by this scale before the update.  A step with a NaN or Inf gradient (an overflow) is skipped.
 * The dynamic scale changes as in Megatron's DynamicGradScaler.  The scale is doubled after `window` consecutive steps
 * without overflow.  The scale is halved at the `hysteresis`-th overflow since the last doubling and at each later
 * overflow, down to --min-loss-scale.
 */
#pragma once
#include "io/json.h"
#include "tensor/step.h"

/*
 * Return the state of a dynamic scale for state.json, under Megatron's names: {"scale", "growth_tracker",
 * "hysteresis_tracker"}.  Return NULL for other types.  The caller owns the result.
 */
json_t *meg_scaler_pack(const struct meg_scaler *s);
/*
 * Restore a dynamic scale from `state`, which was read from the file `from`.  s is unchanged if its type is not
 * dynamic, if `state` is NULL, or if the call fails.  Return MEG_EFORMAT if `state` is invalid.
 */
int meg_scaler_unpack(struct meg_scaler *s, const json_t *state, const char *from, struct meg_err *e);
