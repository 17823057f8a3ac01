/* precision.h - options of mixed precision, and the resulting dtypes and loss scale. */
#pragma once
#include "optim/loss_scaler.h"
#include "option/opt.h"
#include "tensor/dtype.h"

struct meg_precision_conf {
    bool fp16, bf16, accumulate_in_fp32, fp32_residual;
    enum meg_dtype main_grads; /* f32 or bf16 */
    double loss_scale, initial_loss_scale, min_loss_scale;
    int64_t loss_scale_window, hysteresis;
};
extern const struct meg_opt meg_precision_opts[];

/* The dtypes of a run. */
struct meg_precision {
    enum meg_dtype params;   /* dtype of parameters, and of activations except the residual stream */
    enum meg_dtype residual; /* dtype of the residual stream */
    enum meg_dtype grads;    /* dtype of parameter gradients, in accumulation and reduction */
};

/*
 * Check the options and set the dtypes and the initial loss scale.  A --loss-scale above 0 is a constant scale.
 * Otherwise the scale is dynamic with f16, and the loss is not scaled with bf16 and f32.  Return MEG_EUSAGE if an
 * option is invalid.
 */
int meg_precision_make(struct meg_precision *p, struct meg_scaler *s, const struct meg_precision_conf *c,
                       struct meg_err *e);
