/*
 * train.h - train, evaluate and save a GPT according to the options of meg-train.  One process is one rank.
 */
#ifndef MEG_TRAIN_TRAIN_H
#define MEG_TRAIN_TRAIN_H
#include "comm/comm.h"
#include "run/job.h"

MEG_BEGIN_DECLS

/*
 * Run the job; groups are its option groups (meg_train_option_groups).  All options are checked before the model is
 * allocated or a checkpoint is written.  Returns 0 when training is complete or an exit condition holds, MEG_ESTOP if a
 * signal requested a stop and the state is saved.  With train.dry_run or train.plan, it only prints the report and
 * returns 0.
 *
 * Every rank of world calls this function with the same options; rank 0 logs.  When all ranks fail in the same way, one
 * rank's call returns the error, and the other ranks wait until the meg_die of that rank ends them.  If a call fails
 * with several ranks, it frees nothing, since closing collectives would block; the process is expected to exit.
 */
int meg_train(struct meg_train_job *job, const struct meg_optgroup *groups, struct meg_comm *world, struct meg_err *e);

MEG_END_DECLS
#endif
