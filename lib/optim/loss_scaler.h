/*
 * loss_scaler.h - loss scaling for f16 (Micikevicius et al. 2018).
 *
 * Small gradients underflow in f16, so the loss is multiplied by a scale before the backward pass, and the gradients
 * are divided by it before the update.  A step with a NaN or Inf gradient (an overflow) is skipped.  As in Megatron's
 * DynamicGradScaler, `window` consecutive steps without overflow double the dynamic scale.  The `hysteresis`-th
 * overflow since the last doubling, and each later one, halves it.
 */
#ifndef MEG_OPTIM_LOSS_SCALER_H
#define MEG_OPTIM_LOSS_SCALER_H
#include <stdbool.h>
#include "io/json.h"

MEG_BEGIN_DECLS

enum meg_scaler_type {
    MEG_SCALER_NONE, /* scale 1; meg_scaler_update skips no step */
    MEG_SCALER_CONSTANT,
    MEG_SCALER_DYNAMIC
};

struct meg_scaler {
    enum meg_scaler_type type;
    double scale;               /* factor by which the loss is multiplied */
    double min_scale;           /* lower limit of scale */
    int64_t window;             /* number of steps without overflow until scale is doubled */
    int64_t hysteresis;         /* number of overflows since the last doubling until scale is halved */
    int64_t growth_tracker;     /* number of steps since the last overflow or doubling */
    int64_t hysteresis_tracker; /* overflows left until scale is halved; at 1 and below, each overflow halves it */
};

/*
 * Adapt the scale after the backward passes of a step, and return whether to skip the update.  `overflowed` states
 * whether a gradient of any rank was NaN or Inf; it must be equal on all ranks.  The new scale applies to the next
 * step.
 */
bool meg_scaler_update(struct meg_scaler *s, bool overflowed);

/*
 * Return the state of a dynamic scale for state.json, under Megatron's names: {"scale", "growth_tracker",
 * "hysteresis_tracker"}.  Return NULL for other types.  The caller owns the result.
 */
json_t *meg_scaler_pack(const struct meg_scaler *s);
/*
 * Restore a dynamic scale from state, which was read from the file `from`.  If the type is not dynamic, state is NULL,
 * or the call fails, s is unchanged.  Return MEG_EFORMAT if state is invalid.
 */
int meg_scaler_unpack(struct meg_scaler *s, const json_t *state, const char *from, struct meg_err *e);

MEG_END_DECLS
#endif
