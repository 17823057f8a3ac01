/*
 * Loss scale: gradients of small losses are below what f16 holds, so the loss is multiplied by a scale
 * before the backward pass and gradients are divided by it before the update (Micikevicius et al. 2018).
 * A step with a gradient that is not finite is skipped.  The dynamic scale halves on such steps and
 * doubles after a window of good ones, as Megatron's DynamicGradScaler does.
 */
#ifndef MEG_OPTIM_LOSS_SCALER_H
#define MEG_OPTIM_LOSS_SCALER_H
#include <stdbool.h>
#include "io/json.h"

MEG_BEGIN_DECLS

enum meg_scaler_type {
    MEG_SCALER_NONE, /* a scale of 1, and nothing is skipped */
    MEG_SCALER_CONSTANT,
    MEG_SCALER_DYNAMIC
};

struct meg_scaler {
    enum meg_scaler_type type;
    double scale;               /* what the loss is multiplied by */
    double min_scale;           /* the scale never falls below it */
    int64_t window;             /* good steps until it doubles */
    int64_t hysteresis;         /* overflows until it halves, counted since it last doubled */
    int64_t growth_tracker;     /* steps since the last overflow or doubling */
    int64_t hysteresis_tracker; /* of hysteresis; at 0 and below every overflow halves */
};

/*
 * After each step's backward pass, on every rank alike: whether a gradient of any rank was not finite.
 * True: skip the update.  The scale of this step's gradients is the one before the call.
 */
bool meg_scaler_update(struct meg_scaler *s, bool overflowed);

/*
 * The state of a dynamic scale as state.json has it, under Megatron's names: {"scale", "growth_tracker",
 * "hysteresis_tracker"}; NULL of another kind.  The caller owns it.
 */
json_t *meg_scaler_pack(const struct meg_scaler *s);
/*
 * Take it up again; s of another kind, or state NULL, stays as made.  MEG_EFORMAT names from, what was found
 * and what was expected, and leaves s as it was.
 */
int meg_scaler_unpack(struct meg_scaler *s, const json_t *state, const char *from, struct meg_err *e);

MEG_END_DECLS
#endif
