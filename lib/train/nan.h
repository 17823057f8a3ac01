/* Losses and gradients that are not finite: who has them first, and what is done about it. */
#ifndef MEG_TRAIN_NAN_H
#define MEG_TRAIN_NAN_H
#include <stdbool.h>
#include "base/err.h"
#include "model/param.h"

MEG_BEGIN_DECLS

struct trainer;

/* What a rank has of its own, before sums over ranks hide whose it was. */
struct meg_nan_local {
    double loss;                 /* of its tokens; 0 where it has no head */
    const struct meg_param *row; /* whose gradient is not finite, or NULL */
};

enum { MEG_NAN_MAX_CONSECUTIVE = 10 }; /* iterations that are left out before the run is given up */

/* What this rank's loss and gradients were before the sums; loss is its own still. */
void meg_nan_check_local(const struct trainer *t, double loss, struct meg_nan_local *mine);

/*
 * The sums of all ranks are not finite: the first rank whose own were not says so, with iteration and
 * tensor, and gradients are zeroed.  0: the iteration is left out, and with --on-nan rollback weights and
 * optimizer are those of the newest checkpoint again.  Else that rank's call returns MEG_EFAIL, and the
 * others' do not return.
 */
int meg_nan_handle(struct trainer *t, const struct meg_nan_local *mine, struct meg_err *e);

MEG_END_DECLS
#endif
