/*
 * run_spec.h - the specification of a training run, derived from its options: parallel layout, batch sizes, iterations,
 * dtypes, pipeline schedule and recomputation.  The cost model (lib/plan) and the trainer (lib/train) use the same
 * specification.
 */
#pragma once
#include "parallel/schedule.h"
#include "run/job.h"

struct meg_run_spec {
    const struct meg_train_job *job; /* options; borrowed */
    struct meg_precision precision;
    struct meg_scaler scaler; /* initial loss scale */
    struct meg_layout layout;
    struct meg_batch_schedule batch;
    int64_t train_iters;
    int64_t num_tokens;                     /* vocabulary size of the tokenizer; that of the model may differ */
    struct meg_pipe_schedule_conf schedule; /* schedule of a step with the largest global batch of the run */
    struct meg_model_run model_run;         /* fields common to all stages; meg_run_spec_stage sets the others */
};

/*
 * Make the part of the specification that does not depend on the model, for world_size ranks.  Return MEG_EUSAGE if a
 * training, precision or layout option is invalid.
 */
int meg_run_spec_make(struct meg_run_spec *s, const struct meg_train_job *job, int64_t world_size, struct meg_err *e);

/*
 * Complete the specification for the model in s->job, which must have passed meg_model_conf_check.  Return MEG_EUSAGE
 * if options, such as for layout, data, optimizer, schedule and recomputation, cannot be combined with the model
 * or with each other.  Free s->layout with meg_layout_free, also after a failure.
 */
int meg_run_spec_fit_model(struct meg_run_spec *s, struct meg_err *e);

/* Return the pipeline schedule of a step of num_micro micro-batches. */
struct meg_pipe_schedule_conf meg_run_spec_schedule(const struct meg_run_spec *s, int64_t num_micro);

/*
 * Return a copy of *run for one stage, with microbatch_slots and defers_wgrad set to the values that the schedule
 * requires for this stage.
 */
struct meg_model_run meg_run_spec_stage(const struct meg_model_run *run, const struct meg_pipe_schedule_conf *schedule,
                                        int64_t stage);
