/* A run while it runs. */
#ifndef MEG_TRAIN_INTERNAL_H
#define MEG_TRAIN_INTERNAL_H
#include <stdio.h>
#include "ckpt/ckpt.h"
#include "data/gpt_data.h"
#include "data/loader.h"
#include "file/lock.h"
#include "parallel/pipeline.h"
#include "plan/cost.h"
#include "logging/logger.h"
#include "train/straggler.h"
#include "train/train.h"

/* How far the run is: what a checkpoint holds beside weights and optimizer state. */
struct meg_train_state {
    int64_t iteration;
    int64_t consumed_train, consumed_valid; /* samples, which place the loaders */
    int64_t skipped;                        /* samples left out by --decrease-batch-size-if-needed */
    int64_t steps;                          /* of the schedules: samples of successful iterations */
};

/* The micro-batches of a step or evaluation. */
struct meg_train_batches {
    struct meg_batch *micro; /* [cap] */
    double *scale;           /* [cap] of each one's summed loss in what gradients are of */
    int64_t cap;
    double tokens; /* of all, those that count in the loss */
};

/* The list of actions that is walked, and its buffers. */
struct meg_train_pipeline {
    struct meg_pipe_schedule list;
    struct meg_pipe_tensor tensor;
    struct meg_pipe pipe;
    struct meg_arena arena;
    double loss;
};

struct trainer {
    struct meg_train_job *job;
    struct meg_lock lock;        /* of --save, on rank 0 */
    const struct meg_mesh *mesh; /* &grid; its groups are there once the model is known */
    struct meg_mesh grid;
    const struct meg_optgroup *groups;
    struct meg_batch_schedule plan;
    int64_t iters; /* of the whole run */
    struct meg_lr_schedule schedule;
    struct meg_precision precision;
    struct meg_scaler scaler;
    struct meg_dataset_spec need;
    struct meg_tokenizer *tok;
    struct meg_ckpt_tokenizer tok_files;
    struct meg_ckpt *from; /* the checkpoint the run begins with, or NULL */
    struct meg_data_splits *data;
    struct meg_data_loader *train, *valid; /* NULL where there is nothing to read */
    struct meg_gpt *model;
    struct meg_optim *optim;
    struct meg_train_batches batches;
    struct meg_train_pipeline walk;
    struct meg_logger *report;
    struct meg_straggler straggler;
    struct meg_train_state at;
    int64_t optim_steps; /* of the optimizer in that checkpoint */
    uint32_t dropout_seed;
    struct meg_ckpt_async_save *saving; /* the save in the background, or NULL */
    struct meg_train_state saving_at;
    int64_t saved;                /* iteration of the newest checkpoint in --save, that of saving included, or -1 */
    int64_t committed;            /* the same without that of saving */
    int64_t loaded;               /* the one in --save that the run began with, or -1 */
    int64_t nan_in_a_row;         /* iterations left out since the last one that was not */
    double sent[MEG_COST_GROUPS]; /* bytes this rank sent in the last step */
    int64_t sent_num_micro;       /* and the micro-batches of that */
    double start_s, start_flops;
};

/* One iteration's numbers. */
struct meg_step_result {
    struct meg_batch_size batch;
    double lm_loss, grad_norm, params_norm, seconds;
    int64_t num_zeros;
    bool is_left_out; /* by --on-nan or the loss scale: nothing was updated */
};

/* ---- consensus.c: what ranks must agree on ---- */

static inline bool meg_train_is_rank0(const struct trainer *t)
{
    return t->mesh->world->rank == 0;
}

/*
 * Every rank gives its result of the same work.  Where all succeeded it is 0; else the first rank that
 * failed gets its own, and the others do not return.
 */
int meg_train_agree_or_exit(const struct trainer *t, int r);
/* For a failure that all ranks see alike: returns r on rank 0 and on no other. */
int meg_train_fail_on_rank0(const struct trainer *t, int r);
/*
 * Whether all ranks have the same tokenizer files, checkpoint and data.  Where one has not it alone returns,
 * MEG_EFORMAT with the file's name.
 */
int meg_train_check_inputs(const struct trainer *t, struct meg_err *e);
/* Whether any rank was asked to stop by a signal. */
bool meg_train_stop_requested(const struct trainer *t);
/* The largest of all ranks' x. */
double meg_train_max_over_ranks(const struct trainer *t, double x);

/* ---- run_pipeline.c ---- */

/*
 * Read the next micro-batches into t->batches; every rank calls it between steps.  Where a rank cannot, all save
 * what is trained so far, with --save, and the first such rank returns its error.
 */
int meg_train_read_batches(struct trainer *t, struct meg_data_loader *l, int64_t num_micro, struct meg_err *e);
void meg_train_batches_free(struct meg_train_batches *b);

/* Bytes of host memory that a micro-batch takes while its step lasts. */
size_t meg_train_micro_batch_nbytes(const struct trainer *t);

/* How the stages of a layout go through so many micro-batches. */
struct meg_pipe_schedule_conf meg_train_pipeline_schedule(const struct meg_train_job *job, const struct meg_layout *l,
                                                          int64_t num_micro);
/*
 * Take t->batches through the model: gradients are added up when training, else there is no dropout.
 * *loss is the sum of loss * mask on the last stage, and 0 on others.  MEG_EFAIL when memory does not
 * suffice.
 */
int meg_train_run_pipeline(struct trainer *t, int64_t num_micro, bool is_training, double *loss, struct meg_err *e);
void meg_train_pipeline_free(struct meg_train_pipeline *w);

/* ---- step.c ---- */

/* Whether a loss or gradient that is not finite is an error, and not a loss scale that is too large. */
static inline bool meg_train_checks_nan(const struct trainer *t)
{
    return t->job->train.check_for_nan && t->scaler.type != MEG_SCALER_DYNAMIC;
}

/* The rate of the word embedding and output weight at this point. */
double meg_train_decoupled_lr(const struct trainer *t);

/* One step: gradients of a global batch, clipping, update, and t->at moved on. */
int meg_train_step(struct trainer *t, struct meg_step_result *out, struct meg_err *e);

/*
 * Mean loss over --eval-iters global batches that l gives.  A request to stop ends it early: *loss is
 * then NaN.
 */
int meg_train_evaluate(struct trainer *t, struct meg_data_loader *l, const char *split, double *loss,
                       struct meg_err *e);

/* ---- setup.c ---- */

/* Ranks that are planned for, or that there are. */
int64_t meg_train_world_size(const struct trainer *t);

/* How the model is cut over the ranks of t->grid.layout, and whether the schedule and what is recomputed suit it. */
int meg_train_fit_layout(struct trainer *t, struct meg_err *e);

/* A loader of a split that stands where consumed samples were read; *out is NULL where there is no data. */
int meg_train_open_loader(struct trainer *t, struct meg_data_loader **out, int split, int64_t consumed,
                          struct meg_err *e);

/* ---- checkpointing.c ---- */

/* Open what --load names, and take options from it where that is asked for, before they are checked. */
int meg_train_open_checkpoint(struct trainer *t, struct meg_err *e);
/* With checked options: whether they fit the checkpoint, and where in the run it stands. */
int meg_train_read_state(struct trainer *t, struct meg_err *e);
/*
 * Refuse to save over the checkpoints of a run that this one does not resume (MEG_EUSAGE), unless
 * --overwrite-checkpoints is given.
 */
int meg_train_check_save_dir(const struct trainer *t, struct meg_err *e);
/* Weights and optimizer state of the checkpoint, or initial weights. */
int meg_train_load(struct trainer *t, struct meg_err *e);
/* Weights and optimizer state of the newest checkpoint in --save; the place in the run stays. */
int meg_train_roll_back(struct trainer *t, struct meg_err *e);
/*
 * How a run treats a save that fails: it warns and continues, or it ends with the error.  A save may fail where a later
 * one will follow and --exit-on-save-failure is not given.
 */
enum meg_save_failure {
    MEG_SAVE_MAY_FAIL,
    MEG_SAVE_MUST_NOT_FAIL,
    MEG_SAVE_BEFORE_ERROR /* the run ends with another error; it only warns */
};

/* Save a checkpoint of this moment, complete or not at all; with --async-save only begin it. */
int meg_train_save(struct trainer *t, enum meg_save_failure failure, struct meg_err *e);
/* Save before the run ends with the error *e, whose message then says so; NULL: another rank has the error. */
void meg_train_save_before_error(struct trainer *t, struct meg_err *e);
/* Move a save in the background on, or with wait finish it.  Every rank calls it between steps. */
int meg_train_save_poll(struct trainer *t, bool wait, enum meg_save_failure failure, struct meg_err *e);

/* ---- progress.c: lines of SAVE/progress.txt, where --log-progress asks for them ---- */
int meg_train_progress_log_start(struct trainer *t, struct meg_err *e);
void meg_train_progress_log_save(struct trainer *t, const struct meg_train_state *at);

/* ---- loop.c ---- */
int meg_train_loop(struct trainer *t, struct meg_err *e);

/* ---- usage_vs_plan.c ---- */

/* The run as the planner sees it, with steps of so many micro-batches a data-parallel rank. */
struct meg_cost_model meg_plan_cost_model(const struct trainer *t, int64_t num_micro);
/* meg_train_step, and what each group sent in it. */
int meg_train_measured_step(struct trainer *t, struct meg_step_result *s, struct meg_err *e);
/* This rank's, once training is over. */
void meg_usage_vs_plan_measure(const struct trainer *t, struct meg_usage_vs_plan *a);
/*
 * With -v: what was sent in the last step, what the process took since it had start_nbytes, and whether that is what
 * was planned; every rank calls it.
 */
void meg_usage_vs_plan_log(const struct trainer *t, const struct meg_usage_vs_plan *a, double start_nbytes);

/* ---- memory_check.c ---- */

/* Bytes that a process takes beside its arenas. */
double meg_memory_overhead(const struct trainer *t);
/* Threads of a rank that the hardware's row counts one by one. */
int meg_plan_threads(const struct meg_hardware *hw);
/* Bytes of this machine's memory for each of so many ranks on it. */
double meg_memory_available(int64_t ranks);
/*
 * MEG_EFAIL where the arenas of this machine's ranks are more than it has; every rank calls it, before they are
 * made.
 */
int meg_memory_check(const struct trainer *t, struct meg_err *e);

/* Bytes of this process that are in memory now, and the most there were. */
double meg_memory_rss(void);
double meg_memory_peak_rss(void);

/* ---- plan.c ---- */

/* What --dry-run says, once the settings are checked and t->data is planned. */
void meg_plan_print_dry_run(const struct trainer *t, FILE *f);

/* ---- plan_search.c ---- */

/* Set to 1 or nothing what --plan is to find for so many ranks; ranks may break a rule that is checked later. */
void meg_plan_reset_layout(struct meg_train_job *job, int64_t ranks);
/* What --plan says; MEG_EFAIL where no layout fits the memory. */
int meg_plan_print_layouts(const struct trainer *t, FILE *f, struct meg_err *e);

#endif
