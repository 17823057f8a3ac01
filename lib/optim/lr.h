/*
 * lr.h - schedules of learning rate and weight decay.
 *
 * A schedule counts samples, because the batch size may change: `steps` is the number of samples in successful
 * iterations so far.  The formulas are from Megatron's OptimizerParamScheduler.
 *
 * Learning rate, with N = steps, warm-up W, end of the decay T, length of the WSD decay D, maximum M and minimum m.
 * The first line whose condition is true applies:
 *   N <= W, W > 0             init + (M - init) N / W
 *   constant                  M
 *   N > T                     m
 *   inverse-square-root       max(m, M sqrt(max(W,1)) / sqrt(max(N,1)))
 *   else m + c (M - m), with r = (N - W) / (T - W):
 *     linear: c = 1 - r; cosine: c = (1 + cos(pi r)) / 2;
 *     WSD: c = 1 until T - D; then, with r = (N - T + D) / D, linear: c = 1 - r; cosine: c = (1 + cos(pi r)) / 2;
 *       exponential: c = 2 * 0.5^r - 1
 *
 * Weight decay, with r = N / wd_incr: the end value if constant or r > 1, else start + c (end - start), where
 *     linear: c = r; cosine: c = (1 + cos(pi (1 - r))) / 2
 */
#pragma once
#include <stdint.h>

enum meg_lr_style { MEG_LR_CONSTANT, MEG_LR_LINEAR, MEG_LR_COSINE, MEG_LR_INVERSE_SQUARE_ROOT, MEG_LR_WSD };
enum meg_wsd_style { MEG_WSD_LINEAR, MEG_WSD_COSINE, MEG_WSD_EXPONENTIAL };
enum meg_wd_style { MEG_WD_CONSTANT, MEG_WD_LINEAR, MEG_WD_COSINE };

struct meg_lr_schedule {
    double init_lr, max_lr, min_lr;
    double warmup;            /* warm-up in samples; may be fractional with --lr-warmup-fraction */
    int64_t decay, wsd_decay; /* end of the decay and length of the WSD decay, in samples */
    enum meg_lr_style style;
    enum meg_wsd_style wsd_style;
    double start_wd, end_wd;
    int64_t wd_incr; /* number of samples after which the weight decay is end_wd */
    enum meg_wd_style wd_style;
};

/*
 * Return the learning rate after `steps` samples.  max_lr and min_lr are the limits of the schedule.  For decoupled
 * parameters, they are --decoupled-lr and --decoupled-min-lr.
 */
double meg_lr_at(const struct meg_lr_schedule *c, double max_lr, double min_lr, int64_t steps);

/* Return the weight decay after `steps` samples. */
double meg_wd_at(const struct meg_lr_schedule *c, int64_t steps);
