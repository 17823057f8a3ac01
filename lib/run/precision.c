/* precision.c - options of mixed precision. */
#include "run/precision.h"
#include "option/check.h"

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

int meg_precision_make(struct meg_precision *p, struct meg_scaler *s, const struct meg_precision_conf *c,
                       struct meg_err *e)
{
    const enum meg_dtype half = c->fp16 ? MEG_DTYPE_F16 : c->bf16 ? MEG_DTYPE_BF16 : MEG_DTYPE_F32;
    const bool is_half = c->fp16 || c->bf16, has_bf16_grads = c->main_grads == MEG_DTYPE_BF16;
    const struct meg_opt_rule rules[] = {
        { c->fp16 && c->bf16, "fp16", " cannot be combined with --bf16" },
        { c->fp32_residual && !is_half, "fp32-residual-connection", ": requires --fp16 or --bf16" },
        { has_bf16_grads && !c->bf16, "main-grads-dtype", ": requires --bf16" },
        { has_bf16_grads && c->accumulate_in_fp32, "main-grads-dtype",
          ": contradicts --accumulate-allreduce-grads-in-fp32" },
        { c->loss_scale < 0, "loss-scale", ": must be 0 or more" },
        { c->loss_scale > 0 && !is_half, "loss-scale", ": requires --fp16 or --bf16" },
        { !(c->initial_loss_scale > 0), "initial-loss-scale", ": must be above 0" },
        { !(c->min_loss_scale > 0), "min-loss-scale", ": must be above 0" },
        { c->loss_scale_window < 1, "loss-scale-window", ": must be at least 1" },
        { c->hysteresis < 1, "hysteresis", ": must be at least 1" },
        { 0 },
    };
    const int r = meg_opt_check_rules(rules, meg_precision_opts, c, e);

    if (r < 0)
        return r;
    if (c->min_loss_scale > c->initial_loss_scale)
        return meg_fail(e, MEG_EUSAGE, "--min-loss-scale %g: must not be above --initial-loss-scale %g",
                        c->min_loss_scale, c->initial_loss_scale);
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
