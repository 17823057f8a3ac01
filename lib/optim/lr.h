/*
 * Learning rate and weight decay as functions of how far training is.
 *
 * The unit is samples: steps counts those of successful iterations, so that a change of batch size does
 * not bend the curve.  Formulas of Megatron's OptimizerParamScheduler; with W warm-up, T the end of
 * the decay, N = steps, M the highest and m the lowest rate:
 *   N <= W, W > 0             init + (M - init) N / W
 *   constant                  M
 *   N > T                     m
 *   inverse-square-root       max(m, M sqrt(max(W,1)) / sqrt(max(N,1)))
 *   else m + c (M - m), with r = (N - W) / (T - W):
 *     linear 1 - r, cosine (1 + cos(pi r)) / 2,
 *     WSD    1 until T - D; then, r = (N - T + D) / D, linear 1 - r, cosine (1 + cos(pi r)) / 2,
 *            exponential 2 * 0.5^r - 1
 */
#ifndef MEG_OPTIM_LR_H
#define MEG_OPTIM_LR_H
#include <stdint.h>
#include "base/decls.h"

MEG_BEGIN_DECLS

enum meg_lr_style { MEG_LR_CONSTANT, MEG_LR_LINEAR, MEG_LR_COSINE, MEG_LR_INVERSE_SQUARE_ROOT, MEG_LR_WSD };
enum meg_wsd_style { MEG_WSD_LINEAR, MEG_WSD_COSINE, MEG_WSD_EXPONENTIAL };
enum meg_wd_style { MEG_WD_CONSTANT, MEG_WD_LINEAR, MEG_WD_COSINE };

struct meg_lr_schedule {
    double init_lr, max_lr, min_lr;
    double warmup;            /* samples; a fraction of the decay need not be whole */
    int64_t decay, wsd_decay; /* samples */
    enum meg_lr_style style;
    enum meg_wsd_style wsd_style;
    double start_wd, end_wd;
    int64_t wd_incr; /* samples until end_wd */
    enum meg_wd_style wd_style;
};

/* The rate after steps samples, between max_lr and min_lr (the schedule's own, or those of decoupled parameters). */
double meg_lr_at(const struct meg_lr_schedule *c, double max_lr, double min_lr, int64_t steps);

/* The weight decay after steps samples, before a parameter's multiplier. */
double meg_wd_at(const struct meg_lr_schedule *c, int64_t steps);

MEG_END_DECLS
#endif
