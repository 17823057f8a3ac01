/* precision.c - options of mixed precision. */
#include "run/precision.h"
#include <inttypes.h>

#define C struct meg_precision_conf
const struct meg_opt meg_precision_opts[] = {
    { "fp16", 0, MEG_BOOL(C, fp16), NULL, "no",
      "train in IEEE half precision (fp16), with fp32 main parameters and a loss scale" },
    { "bf16", 0, MEG_BOOL(C, bf16), NULL, "no", "train in bfloat16, with fp32 main parameters" },
    { "accumulate-allreduce-grads-in-fp32", 0, MEG_BOOL(C, accumulate_in_fp32), NULL, "no",
      "accumulate and reduce gradients in fp32 with --fp16; --bf16 does so unless --main-grads-dtype is bf16" },
    { "main-grads-dtype", 0, MEG_ENUM(C, main_grads), "fp32|bf16", "fp32",
      "dtype of the gradients with --bf16, in accumulation and reduction" },
    { "fp32-residual-connection", 0, MEG_BOOL(C, fp32_residual), NULL, "no",
      "keep the residual stream in fp32 with --fp16 or --bf16" },
    { "loss-scale", 0, MEG_F64(C, loss_scale), "F", NULL,
      "constant loss scale; 0, the default: dynamic with --fp16, and none with --bf16" },
    { "initial-loss-scale", 0, MEG_F64(C, initial_loss_scale), "F", "4294967296",
      "initial value of the dynamic loss scale" },
    { "min-loss-scale", 0, MEG_F64(C, min_loss_scale), "F", "1", "minimum value of the dynamic loss scale" },
    { "loss-scale-window", 0, MEG_I64(C, loss_scale_window), "N", "1000",
      "number of steps without overflow after which the dynamic loss scale is doubled" },
    { "hysteresis", 0, MEG_I64(C, hysteresis), "N", "2",
      "halve the dynamic loss scale at the Nth overflow and at each later one; the count restarts when the scale is "
      "doubled" },
    { 0 }
};
#undef C

static int check_scale(const struct meg_precision_conf *c, struct meg_err *e)
{
    const struct {
        const char *name;
        double v;
    } above_0[] = { { "--initial-loss-scale", c->initial_loss_scale }, { "--min-loss-scale", c->min_loss_scale } };
    const struct {
        const char *name;
        int64_t v;
    } counts[] = { { "--loss-scale-window", c->loss_scale_window }, { "--hysteresis", c->hysteresis } };

    if (c->loss_scale < 0)
        return meg_fail(e, MEG_EUSAGE, "--loss-scale %g: must be 0 or more", c->loss_scale);
    if (c->loss_scale > 0 && !c->fp16 && !c->bf16)
        return meg_fail(e, MEG_EUSAGE, "--loss-scale %g: requires --fp16 or --bf16", c->loss_scale);
    for (int i = 0; i < 2; i++)
        if (!(above_0[i].v > 0))
            return meg_fail(e, MEG_EUSAGE, "%s %g: must be above 0", above_0[i].name, above_0[i].v);
    if (c->min_loss_scale > c->initial_loss_scale)
        return meg_fail(e, MEG_EUSAGE, "--min-loss-scale %g: must not be above --initial-loss-scale %g",
                        c->min_loss_scale, c->initial_loss_scale);
    for (int i = 0; i < 2; i++)
        if (counts[i].v < 1)
            return meg_fail(e, MEG_EUSAGE, "%s %" PRId64 ": must be at least 1", counts[i].name, counts[i].v);
    return 0;
}

int meg_precision_make(struct meg_precision *p, struct meg_scaler *s, const struct meg_precision_conf *c,
                       struct meg_err *e)
{
    const enum meg_dtype half = c->fp16 ? MEG_DTYPE_F16 : c->bf16 ? MEG_DTYPE_BF16 : MEG_DTYPE_F32;
    int r;

    if (c->fp16 && c->bf16)
        return meg_fail(e, MEG_EUSAGE, "--fp16 cannot be combined with --bf16");
    if (c->fp32_residual && half == MEG_DTYPE_F32)
        return meg_fail(e, MEG_EUSAGE, "--fp32-residual-connection: requires --fp16 or --bf16");
    if (c->main_grads == MEG_DTYPE_BF16 && (!c->bf16 || c->accumulate_in_fp32))
        return meg_fail(e, MEG_EUSAGE, "--main-grads-dtype bf16: %s",
                        c->bf16 ? "contradicts --accumulate-allreduce-grads-in-fp32" : "requires --bf16");
    if ((r = check_scale(c, e)) < 0)
        return r;
    p->params = half;
    p->residual = c->fp32_residual ? MEG_DTYPE_F32 : half;
    p->grads = c->fp16 && !c->accumulate_in_fp32 ? MEG_DTYPE_F16 : c->main_grads;
    *s = (struct meg_scaler){ .type = c->loss_scale > 0 ? MEG_SCALER_CONSTANT
                                      : c->fp16         ? MEG_SCALER_DYNAMIC
                                                        : MEG_SCALER_NONE,
                              .scale = 1 };
    if (s->type == MEG_SCALER_CONSTANT)
        s->scale = c->loss_scale;
    if (s->type == MEG_SCALER_DYNAMIC) {
        s->scale = c->initial_loss_scale;
        s->min_scale = c->min_loss_scale;
        s->window = c->loss_scale_window;
        s->hysteresis = s->hysteresis_tracker = c->hysteresis;
    }
    return 0;
}
