/*
 * run_spec.h - a training run as its options specify it: parallel layout, batch sizes, iterations, dtypes, pipeline
 * schedule and recomputation.  The planner (lib/plan) predicts exactly this run because the trainer (lib/train) works
 * from the same specification.
 */
#ifndef MEG_RUN_RUN_SPEC_H
#define MEG_RUN_RUN_SPEC_H
#include "parallel/schedule.h"
#include "run/job.h"

MEG_BEGIN_DECLS

struct meg_run_spec {
    const struct meg_train_job *job; /* the options; borrowed */
    struct meg_precision precision;
    struct meg_scaler scaler; /* the loss scale at the first step */
    struct meg_layout layout;
    struct meg_batch_schedule batch;
    int64_t train_iters;
    struct meg_pipe_schedule_conf schedule; /* schedule for the largest global batch of the run */
    struct meg_gpt_run model_run;           /* fields common to all stages; meg_run_spec_stage sets the others */
};

/*
 * Make the part of the specification that does not depend on the model, for world_size ranks.  Return MEG_EUSAGE, with
 * a message that states the option, its value and the rule, if a training, precision or layout option is invalid.
 */
int meg_run_spec_make(struct meg_run_spec *s, const struct meg_train_job *job, int64_t world_size, struct meg_err *e);

/*
 * Complete the specification once job->model has passed meg_gpt_conf_check: split the model over the ranks.  Return
 * MEG_EUSAGE if layout, optimizer sharding, schedule or recomputation do not fit the model or each other.
 */
int meg_run_spec_fit_model(struct meg_run_spec *s, struct meg_err *e);

/* Return the pipeline schedule of a step of num_micro micro-batches. */
struct meg_pipe_schedule_conf meg_run_spec_schedule(const struct meg_run_spec *s, int64_t num_micro);

/*
 * Return *run with the fields of one stage set: its number of activation slots, and whether it defers weight gradients.
 */
struct meg_gpt_run meg_run_spec_stage(const struct meg_gpt_run *run, const struct meg_pipe_schedule_conf *schedule,
                                      int64_t stage);

MEG_END_DECLS
#endif
