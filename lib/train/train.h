/*
 * A training run of a GPT: from settings to a trained, evaluated and saved model.  One process is
 * one rank; what is here is what cmd/train wires to the command line.
 */
#ifndef MEG_TRAIN_TRAIN_H
#define MEG_TRAIN_TRAIN_H
#include "data/data_conf.h"
#include "logging/log_conf.h"
#include "model/gpt.h"
#include "optim/optim.h"
#include "optim/precision.h"
#include "option/opt.h"
#include "tokenizer/tokenizer.h"
#include "train/conf.h"
#include "train/usage_vs_plan.h"

MEG_BEGIN_DECLS

struct meg_train_job {
    struct meg_train_conf train;
    struct meg_layout_conf layout;
    struct meg_train_ckpt_conf ckpt;
    struct meg_logging_conf log;
    struct meg_optim_conf optim;
    struct meg_zero_conf share;
    struct meg_precision_conf precision;
    struct meg_gpt_conf model;
    struct meg_data_conf data;
    struct meg_tok_conf tok;
    struct meg_usage_vs_plan *account; /* NULL, or filled when the run is over, by each rank its own */
};

/* The tables of meg-train's options, which fill job, in the order of its manual; { 0 } is the last. */
enum { MEG_TRAIN_OPTION_GROUPS = 12 };
void meg_train_option_groups(struct meg_optgroup out[MEG_TRAIN_OPTION_GROUPS], struct meg_train_job *job);

/*
 * Run the job whose settings groups hold (they name the job's structs; checkpoints keep their dump).
 * Every rule is checked before memory is taken or a file written.  Returns 0 when training is done or
 * one of the exit conditions was met, MEG_ESTOP when a signal asked to stop and the state is saved.
 * With train.dry_run or train.plan: print the plan, or layouts, and return.
 *
 * Every rank of world calls it with the same settings.  Data-parallel ranks read their share of each
 * global batch and add up gradients; rank 0 reports and saves.  Of a failure that all ranks meet, one
 * rank's call returns; the others wait to be ended by that one's meg_die.  A call of one among several
 * that fails while it runs leaves all as it is, and the process is to end.
 */
int meg_train(struct meg_train_job *job, const struct meg_optgroup *groups, struct meg_comm *world, struct meg_err *e);

MEG_END_DECLS
#endif
