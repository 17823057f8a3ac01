/* loss_scaler.c - the dynamic loss scale in checkpoints. */
#include "optim/loss_scaler.h"
#include <inttypes.h>
#include <math.h>

json_t *meg_scaler_pack(const struct meg_scaler *s)
{
    if (s->type != MEG_SCALER_DYNAMIC)
        return NULL;
    return json_pack("{s:f,s:I,s:I}", "scale", s->scale, "growth_tracker", (json_int_t)s->growth_tracker,
                     "hysteresis_tracker", (json_int_t)s->hysteresis_tracker);
}

int meg_scaler_unpack(struct meg_scaler *s, const json_t *state, const char *from, struct meg_err *e)
{
    struct meg_scaler next = *s;
    int r;

    if (s->type != MEG_SCALER_DYNAMIC || !state)
        return 0;
    if ((r = meg_json_get_f64(state, "scale", MEG_JSON_REQUIRED, &next.scale, from, e)) < 0 ||
        (r = meg_json_get_i64(state, "growth_tracker", MEG_JSON_REQUIRED, &next.growth_tracker, from, e)) < 0 ||
        (r = meg_json_get_i64(state, "hysteresis_tracker", MEG_JSON_REQUIRED, &next.hysteresis_tracker, from, e)) < 0)
        return r;
    if (!(next.scale > 0) || isinf(next.scale))
        return meg_fail(e, MEG_EFORMAT, "%s: loss scale is %g, expected a finite number above 0", from, next.scale);
    if (next.growth_tracker < 0)
        return meg_fail(e, MEG_EFORMAT, "%s: growth_tracker is %" PRId64 ", expected a non-negative number of steps",
                        from, next.growth_tracker);
    *s = next;
    return 0;
}
