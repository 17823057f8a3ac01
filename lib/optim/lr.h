/*
 * lr.h - schedules of learning rate and weight decay.
 *
 * Schedules are in samples: `steps` is the number of samples in successful iterations, so that a change of batch size
 * does not distort the schedule.  The formulas are those of Megatron's OptimizerParamScheduler, with warm-up W, end of
 * the decay T, length of the WSD decay D, N = steps, maximum rate M and minimum rate m (the first line that applies):
 *   N <= W, W > 0             init + (M - init) N / W
 *   constant                  M
 *   N > T                     m
 *   inverse-square-root       max(m, M sqrt(max(W,1)) / sqrt(max(N,1)))
 *   else m + c (M - m), with r = (N - W) / (T - W):
 *     linear: c = 1 - r; cosine: c = (1 + cos(pi r)) / 2;
 *     WSD: c = 1 until T - D; then, with r = (N - T + D) / D, linear: c = 1 - r; cosine: c = (1 + cos(pi r)) / 2;
 *       exponential: c = 2 * 0.5^r - 1
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
    double warmup;            /* warm-up in samples; may be fractional with --lr-warmup-fraction */
    int64_t decay, wsd_decay; /* end of the decay and length of the WSD decay, in samples */
    enum meg_lr_style style;
    enum meg_wsd_style wsd_style;
    double start_wd, end_wd;
    int64_t wd_incr; /* number of samples until end_wd is reached */
    enum meg_wd_style wd_style;
};

/*
 * Return the learning rate after `steps` samples.  max_lr and min_lr are those of the schedule or of decoupled
 * parameters.
 */
double meg_lr_at(const struct meg_lr_schedule *c, double max_lr, double min_lr, int64_t steps);

/* Return the weight decay after `steps` samples, without a parameter's multiplier. */
double meg_wd_at(const struct meg_lr_schedule *c, int64_t steps);

MEG_END_DECLS
#endif
