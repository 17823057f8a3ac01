/*
 * nan.h - handle losses and gradients that are not finite: find the rank where they arose, and end the run, skip the
 * iteration or roll back.
 */
#ifndef MEG_TRAIN_NAN_H
#define MEG_TRAIN_NAN_H
#include "base/err.h"
#include "model/param.h"

MEG_BEGIN_DECLS

struct meg_trainer;

/* The values of one rank before the reduction over ranks, which would spread a NaN to all ranks. */
struct meg_nan_local {
    double loss;                   /* loss of this rank's tokens; 0 on a rank without output layer */
    const struct meg_param *param; /* parameter whose gradient is not finite, or NULL */
};

enum { MEG_NAN_MAX_CONSECUTIVE = 10 }; /* consecutive iterations with NaN or Inf; the last of them ends the run */

/*
 * Set *local to this rank's loss, before its reduction over ranks, and to a parameter whose gradient is not finite, if
 * any.  Call this after meg_optim_reduce_grads, which checks the gradients of this rank before it reduces them.
 */
void meg_nan_check_local(const struct meg_trainer *t, double loss, struct meg_nan_local *local);

/*
 * Handle an iteration whose reduced loss or gradient norm is not finite, according to --on-nan.  The first rank whose
 * local values are not finite reports the iteration, the loss and the parameter; rank 0 reports if all local values are
 * finite.  Returns 0 when the iteration is skipped: gradients are zeroed and, with --on-nan rollback, weights and
 * optimizer state are loaded from the newest checkpoint in --save.  When the run ends, the reporting rank returns
 * MEG_EFAIL, and the others do not return.  Also returns the errors of the save in progress and of the rollback.
 */
int meg_nan_handle(struct meg_trainer *t, const struct meg_nan_local *local, struct meg_err *e);

MEG_END_DECLS
#endif
