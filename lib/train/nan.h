/*
 * nan.h - handle losses and gradients that are not finite: find the rank where they arose, and end the run, skip the
 * iteration or roll back.
 */
#pragma once
#include "base/err.h"
#include "tensor/step.h"

struct meg_trainer;

enum { MEG_NAN_MAX_CONSECUTIVE = 10 }; /* value of num_consecutive_nan (train/trainer.h) that ends the run */

/*
 * Handle an iteration that was skipped because its loss or gradient norm is not finite, according to --on-nan.  One
 * rank reports the iteration and what is not finite there: the loss, the gradient of a parameter (of several, the first
 * in backward order), both, or only the sum of squared gradients.  The reporting rank is the lowest rank with a local
 * loss or gradient that is not finite, or rank 0 if all are finite.
 *
 * Returns 0 if the run continues; with --on-nan rollback, weights and optimizer state are now those of the last
 * checkpoint that this run saved in --save or loaded from there.  If the run ends, the reporting rank returns
 * MEG_EFAIL, and the other ranks do not return.  A failure of the save in progress or of the rollback is returned as
 * well.
 */
int meg_nan_handle(struct meg_trainer *t, int64_t iteration, const struct meg_step_record *record, struct meg_err *e);

/*
 * Check the end of a run, whose steps are all finished.  Returns MEG_EFAIL if its last iterations were skipped because
 * a loss or gradient is not finite, and these are at least half of the iterations of this process.  A short run would
 * otherwise end before MEG_NAN_MAX_CONSECUTIVE is reached.
 */
int meg_nan_check_end(const struct meg_trainer *t, struct meg_err *e);
