/*
 * train.h - train, evaluate and save a GPT, BERT or T5 model according to the options of meg-train.  Each process is
 * one rank.
 */
#pragma once
#include "comm/comm.h"
#include "run/job.h"

/*
 * Run the job; groups are its option groups (meg_train_option_groups).  All options are checked before the model is
 * allocated or a checkpoint is written.  Returns 0 if training is complete, an exit condition holds, or the evaluation
 * of --skip-train is complete.  Returns MEG_ESTOP if a signal requested a stop and the state is saved.  With
 * train.dry_run or train.plan, only the report is printed.
 *
 * Every rank of world calls this function with the same options.  If ranks fail, one of them returns its error, and all
 * other ranks wait until the failing rank's meg_die ends them.  In a run with several ranks, an error after the memory
 * check, except MEG_ESTOP, is returned without freeing anything: the cleanup has collective calls, which would block.
 * The caller must exit after such an error.
 */
int meg_train(struct meg_train_job *job, const struct meg_optgroup *groups, struct meg_comm *world, struct meg_err *e);
