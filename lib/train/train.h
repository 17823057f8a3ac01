/*
 * train.h - run the training, evaluation and saving of a GPT that the options of meg-train describe.  One process is
 * one rank.
 */
#ifndef MEG_TRAIN_TRAIN_H
#define MEG_TRAIN_TRAIN_H
#include "comm/comm.h"
#include "run/job.h"

MEG_BEGIN_DECLS

/*
 * Run the job whose options groups hold (meg_train_option_groups).  Every rule is checked before memory is allocated
 * or a file written.  Returns 0 when training is complete or an exit condition holds, MEG_ESTOP if a signal requested
 * a stop and the state is saved.  With train.dry_run or train.plan: print the report and return.
 *
 * Every rank of world calls it with the same options; rank 0 logs.  When all ranks fail in the same way, one rank's
 * call returns the error, and the others wait until its meg_die ends them.  With several ranks a call that fails
 * frees nothing, since closing collectives would block; the process is expected to exit.
 */
int meg_train(struct meg_train_job *job, const struct meg_optgroup *groups, struct meg_comm *world, struct meg_err *e);

MEG_END_DECLS
#endif
