/*
 * step.h - the scalars of a training step.  They are in device memory, so the host need not wait for their values.
 *
 * Operations add to the sums of a record.  From these sums, step_finish (tensor/ops.h) decides whether the step updates
 * the weights, and computes the scale factor of the gradients and the next loss scale.  The host reads the record
 * later, once a step.
 */
#pragma once
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include "base/decls.h"

MEG_BEGIN_DECLS

enum { MEG_MAX_LOSSES = 2 }; /* maximum number of losses of a model */

enum meg_scaler_type {
    MEG_SCALER_NONE, /* scale 1; meg_scaler_update skips no step */
    MEG_SCALER_CONSTANT,
    MEG_SCALER_DYNAMIC
};

/* A loss scale; see optim/loss_scaler.h. */
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
static inline MEG_HOST_DEVICE bool meg_scaler_update(struct meg_scaler *s, bool overflowed)
{
    if (s->type == MEG_SCALER_NONE)
        return false;
    if (s->type == MEG_SCALER_CONSTANT)
        return overflowed;
    if (overflowed) {
        s->growth_tracker = 0;
        if (--s->hysteresis_tracker <= 0)
            s->scale = fmax(s->scale / 2, s->min_scale);
    } else if (++s->growth_tracker == s->window) {
        s->growth_tracker = 0;
        s->hysteresis_tracker = s->hysteresis;
        s->scale *= 2;
    }
    return overflowed;
}

/* Hyper-parameters of one optimizer step. */
struct meg_step_hparams {
    float lr[2];            /* learning rate of ordinary [0] and decoupled-lr [1] parameters */
    float weight_decay;     /* weight decay before multiplication by wd_mult of a range */
    float adam_c1, adam_c2; /* 1 - beta1^t, 1 - beta2^t for the t-th successful step */
    float grad_scale;       /* factor that unscales, averages and clips gradients */
    int32_t skip;           /* 1: adamw and sgd change nothing; else 0 */
    int64_t update;         /* number of this update, from 1; sgd does not read the momentum in update 1 */
};

/* Sums of one step, zero when the step begins. */
struct meg_step_sums {
    double loss_divisor;               /* number of terms in each sum of losses: unmasked tokens or micro-batches */
    double loss[MEG_MAX_LOSSES];       /* sum of each loss of the model */
    double grad_sumsq, param_sumsq;    /* sums of squares of gradients before unscaling, and of updated parameters */
    int64_t num_zeros;                 /* gradient elements that are exactly zero */
    double local_loss[MEG_MAX_LOSSES]; /* losses before they are summed over ranks */
};

struct meg_step_record {
    struct meg_step_sums sums;   /* step_finish reads loss_divisor, loss and grad_sumsq, already summed over ranks */
    double loss[MEG_MAX_LOSSES]; /* mean losses; 0 if loss_divisor is 0 */
    double grad_norm;            /* L2 norm of the gradients, unscaled but not clipped; NaN if it is not computed */
    int64_t nonfinite_param;     /* 1 + index of the last parameter whose gradient is not finite on this rank, or 0 */
    int64_t is_skipped;          /* the step does not update the weights */
    struct meg_step_hparams hparams;
    /* The following fields keep their values between steps. */
    struct meg_scaler scaler;
    int64_t num_updates; /* steps that updated the weights */
};

/* Arguments of step_finish.  The host may set them before it knows whether the previous step was skipped. */
struct meg_step_conf {
    /* step_finish uses candidate[i] if num_updates of the record is num_updates of this struct plus i */
    struct meg_step_hparams candidate[2];
    int64_t num_updates;
    float clip_grad;        /* limit of the gradient norm; 0: none */
    bool has_grad_norm;     /* grad_sumsq is valid; required by clip_grad, skips_nonfinite and loss scaling */
    bool is_per_token;      /* divide the gradients by loss_divisor */
    bool skips_nonfinite;   /* if the loss or the norm is not finite, skip the update and leave the scaler unchanged */
    const double *grad_sum; /* [num_params] in device memory: sum of squares of each local gradient; NULL: none */
    int64_t num_params;
};

/* Return whether all losses are finite. */
static inline MEG_HOST_DEVICE bool meg_all_finite(const double loss[MEG_MAX_LOSSES])
{
    for (int i = 0; i < MEG_MAX_LOSSES; i++)
        if (!isfinite(loss[i]))
            return false;
    return true;
}

/* Update the scaler and num_updates of r, and compute the other fields of r, from its sums. */
static inline MEG_HOST_DEVICE void meg_step_finish(struct meg_step_record *r, const struct meg_step_conf *c)
{
    const struct meg_step_sums *s = &r->sums;
    const double scale = (c->is_per_token && s->loss_divisor > 0 ? 1 / s->loss_divisor : 1) / r->scaler.scale;
    double clip;

    for (int i = 0; i < MEG_MAX_LOSSES; i++)
        r->loss[i] = s->loss_divisor > 0 ? s->loss[i] / s->loss_divisor : 0;
    r->grad_norm = c->has_grad_norm ? scale * sqrt(s->grad_sumsq) : NAN;
    r->nonfinite_param = 0;
    for (int64_t i = 0; i < c->num_params; i++)
        if (!isfinite(c->grad_sum[i]))
            r->nonfinite_param = i + 1;
    r->is_skipped = (c->skips_nonfinite && !(meg_all_finite(r->loss) && isfinite(r->grad_norm))) ||
                    meg_scaler_update(&r->scaler, !isfinite(r->grad_norm));
    r->hparams = c->candidate[r->num_updates != c->num_updates];
    clip = c->clip_grad / (r->grad_norm + 1e-6);
    r->hparams.grad_scale = (float)(c->clip_grad > 0 && clip < 1 ? scale * clip : scale);
    r->hparams.skip = r->is_skipped != 0;
    r->num_updates += !r->is_skipped;
}

MEG_END_DECLS
