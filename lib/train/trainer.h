/*
 * trainer.h - the state of a training run, and the functions of lib/train that use it.
 */
#pragma once
#include "ckpt/ckpt.h"
#include "data/gpt_data.h"
#include "data/loader.h"
#include "data/masked/masked_vocab.h"
#include "file/lock.h"
#include "logging/logger.h"
#include "model/family.h"
#include "optim/optim.h"
#include "parallel/pipeline.h"
#include "plan/cost.h"
#include "run/run_spec.h"
#include "train/straggler.h"

/* The progress of a run, which a checkpoint stores besides weights and optimizer state. */
struct meg_train_state {
    int64_t iteration;
    int64_t consumed_train,
        consumed_valid;      /* samples that the loader of the split or group skips when the run resumes */
    int64_t skipped_samples; /* samples skipped by --decrease-batch-size-if-needed */
    /*
     * position in the learning-rate and weight-decay schedules, in samples; skipped iterations do not count; stored in
     * a checkpoint only with the optimizer state
     */
    int64_t lr_steps;
};

/* The micro-batches of a step or evaluation on this rank. */
struct meg_train_batches {
    struct meg_batch *micro;          /* [cap] */
    struct meg_loss_factors *factors; /* [cap], in pinned memory */
    int64_t cap;
    double loss_divisor; /* contribution of this rank to the divisor of the losses (struct meg_step_sums) */
};

/* The pipeline schedule for the current number of micro-batches, and its communication buffers. */
struct meg_train_pipeline {
    struct meg_pipe_schedule schedule;
    struct meg_pipe_tensor tensor[MEG_BOUNDARY_TENSORS]; /* tensors that stages send to each other */
    unsigned *transferred;                               /* bit masks of meg_model_transferred, for struct meg_pipe */
    struct meg_pipe pipe;
    void *memory;       /* device memory for sent and received tensors */
    size_t memory_size; /* bytes */
};

/* A step that is queued on the device, and whose result has not been read. */
struct meg_queued_step {
    struct meg_batch_size batch;
    struct meg_train_state state; /* state after the step, except lr_steps, which depends on the result */
    double start_s;
};

/* The result of one iteration. */
struct meg_step_result {
    struct meg_batch_size batch;
    struct meg_train_state state; /* state after the iteration */
    double loss[MEG_MAX_LOSSES];
    /* a norm is NaN if not logged; seconds: since the step began or, if later, since the previous result was read */
    double grad_norm, params_norm, seconds;
    int64_t num_zeros; /* number of gradient elements that are zero; -1: not counted */
    bool is_skipped;   /* no update, because of --on-nan or the loss scale */
};

/* Sums on rank 0 over the iterations since the last log line; `loss` excludes skipped iterations. */
struct meg_log_totals {
    int64_t n, nan, skipped;
    double loss[MEG_MAX_LOSSES], seconds, tokens, flops;
};

/*
 * The data of an evaluation: the groups of Megatron-DeepSpeed of a split, which are evaluated one by one, or one group
 * without a name.  n is 0 if the run does not read the split.
 */
struct meg_train_eval_group {
    int split;
    const char *name; /* NULL: none */
    struct meg_data_loader *loader;
};
struct meg_train_eval {
    int n;
    struct meg_train_eval_group *group; /* [n] */
};

struct meg_trainer {
    struct meg_train_job *job;
    const struct meg_optgroup *groups; /* option groups of the job; checkpoints store their dump */
    struct meg_run_spec spec;
    const struct meg_device *device;
    struct meg_mesh mesh; /* at first only world is set; meg_mesh_make creates the other groups */
    struct meg_lock lock; /* lock on the --save directory, held by rank 0 */
    struct meg_lr_schedule lr_schedule;
    struct meg_scaler scaler;
    struct meg_tokenizer *tokenizer;
    struct meg_ckpt_tokenizer tok_files;
    struct meg_dataset_spec dataset_spec;
    struct meg_masked_vocab masked_vocab; /* BERT */
    struct meg_data_splits *data;
    struct meg_data_loader *train; /* NULL: this run does not train */
    struct meg_train_eval valid;
    struct meg_model *model;
    struct meg_optim *optim; /* NULL with --skip-train */
    struct meg_train_batches batches;
    struct meg_train_batches previous_batches; /* micro-batches of a queued step, whose upload may be incomplete */
    struct meg_train_pipeline pipeline;
    struct meg_logger *logger; /* NULL except on rank 0 */
    struct meg_straggler straggler;

    struct meg_train_state state; /* lr_steps excludes steps with unread results */
    struct meg_queued_step queued[MEG_MAX_QUEUED_STEPS];
    int num_queued;
    double last_result_s; /* time at which the last result was read */
    struct meg_log_totals log_totals;
    double last_loss; /* first loss in the last result that was read; 0: none */
    /*
     * Consecutive iterations that were skipped by --on-nan (skip or rollback), or overflowed at the minimum of a
     * dynamic loss scale.  MEG_NAN_MAX_CONSECUTIVE such iterations end the run.
     */
    int64_t num_consecutive_nan;
    int64_t num_results;         /* iterations whose results were read since this process started */
    double sequence_flops;       /* model FLOPs of a sequence (plan/cost.h) */
    double start_s, start_flops; /* time at which this process started; model FLOPs of the run before that */

    struct meg_ckpt *checkpoint;            /* checkpoint that the run starts from, or NULL */
    bool has_ckpt_tokenizer;                /* the tokenizer is that of the checkpoint, not one of the options */
    int64_t checkpoint_optim_steps;         /* optimizer steps stored in that checkpoint */
    struct meg_ckpt_async_save *async_save; /* save in progress, or NULL */
    struct meg_train_state async_save_state;
    int64_t last_saved;       /* iteration of the save in progress, or else last_committed */
    int64_t last_committed;   /* last iteration that this run loaded from --save or finished saving there; -1: none */
    int64_t loaded_iteration; /* iteration in --save from which the run resumed; -1: none */

    double comm_bytes[MEG_COST_GROUPS]; /* bytes that this rank sent in the last step, per type of group */
    int64_t comm_num_micro;             /* micro-batches of the last step; 0: no step was run */
};

/* ---- rank_consensus.c: agreement of all ranks ---- */

static inline bool meg_train_is_rank0(const struct meg_trainer *t)
{
    return t->mesh.world->rank == 0;
}

/*
 * Agree on whether a rank failed; `r` is the result of this rank, negative if it failed.  If no rank failed, return r.
 * Otherwise the lowest failed rank returns its r, and the other ranks wait until the failed rank's meg_die ends them.
 * Collective over all ranks.
 */
int meg_train_agree_or_exit(const struct meg_trainer *t, int r);
/*
 * Handle a failure that every rank detects.  Return r on rank 0; the other ranks wait until rank 0's meg_die ends them.
 */
int meg_train_fail_on_rank0(const struct meg_trainer *t, int r);
/*
 * Compare the tokenizer files, the checkpoint and the data files of all ranks (meg_rank_config_add_file).  Return 0 if
 * they are equal.  Otherwise the lowest rank that differs from the majority returns MEG_EFORMAT and a message that
 * names a file that differs.  The other ranks do not return.
 */
int meg_train_check_inputs(const struct meg_trainer *t, struct meg_err *e);
/*
 * Return whether any rank received a signal to stop.  Set *minutes, unless NULL, to the maximum over ranks of the time
 * since the process started.  Collective.
 */
bool meg_train_stop_requested(const struct meg_trainer *t, double *minutes);

/* ---- run_pipeline.c: run micro-batches through the pipeline schedule ---- */

/*
 * Read the next num_micro micro-batches into t->batches.  Collective over all ranks.  If a rank fails, all ranks call
 * meg_train_save_before_error.  The lowest failed rank then returns its error, and the other ranks do not return.
 */
int meg_train_read_batches(struct meg_trainer *t, struct meg_data_loader *l, int64_t num_micro, struct meg_err *e);
void meg_train_batches_free(struct meg_train_batches *b, const struct meg_device *d);

/*
 * Run the first num_micro micro-batches of t->batches forward through the model.  If is_training is true, run backward
 * as well, which accumulates gradients; otherwise disable dropout.  Afterwards, loss_sum of the model contains the loss
 * sums over the num_micro micro-batches.  Returns MEG_EFAIL if memory allocation fails.
 */
int meg_train_run_pipeline(struct meg_trainer *t, int64_t num_micro, bool is_training, struct meg_err *e);
void meg_train_pipeline_free(struct meg_trainer *t);

/* ---- step.c: one iteration ---- */

/*
 * Return whether --on-nan applies to a step with NaN or Inf.  --on-nan does not apply with
 * --no-check-for-nan-in-loss-and-grad, nor with a dynamic loss scale, which skips such steps itself
 * (meg_scaler_update).
 */
static inline bool meg_train_checks_nan(const struct meg_trainer *t)
{
    return t->job->train.check_for_nan && t->scaler.type != MEG_SCALER_DYNAMIC;
}

/* Return the learning rate after lr_steps samples of successful steps. */
double meg_train_lr(const struct meg_trainer *t, int64_t lr_steps);
/* Return the learning rate of the word embedding and the output layer after lr_steps samples of successful steps. */
double meg_train_decoupled_lr(const struct meg_trainer *t, int64_t lr_steps);

/*
 * Queue one iteration: forward and backward of a global batch, gradient clipping and the optimizer update.  The device
 * decides whether to skip the update (meg_step_finish).  Advances t->state, except lr_steps.
 */
int meg_train_step(struct meg_trainer *t, struct meg_err *e);
/*
 * Return how many steps may have unread results when the next step is queued: 0 if device memory is host memory, 0 with
 * --on-nan rollback, which must act before the next step, and otherwise 1.
 */
int meg_train_max_queued_steps(const struct meg_trainer *t);
/*
 * Wait for the oldest queued step, and set *out to its result.  Advances t->state.lr_steps unless the step was skipped.
 * A skipped step is handled according to --on-nan and the loss scale; if it ends the run, an error is returned.
 */
int meg_train_step_result(struct meg_trainer *t, struct meg_step_result *out, struct meg_err *e);

/*
 * Set loss [MEG_MAX_LOSSES] to the mean losses over --eval-iters global batches of loader l.  `split` names the data
 * split in progress messages.  A stop request ends the evaluation early, with losses NaN and return value 0.
 */
int meg_train_evaluate(struct meg_trainer *t, struct meg_data_loader *l, const char *split, double *loss,
                       struct meg_err *e);

/* Return the losses `loss` [losses of the model], in nats, with their names. */
struct meg_named_losses meg_train_named_losses(const struct meg_trainer *t, const double *loss);

/* ---- setup.c ---- */

/* Return the number of ranks to plan for: --world-size, or else the ranks of this run. */
int64_t meg_train_planned_ranks(const struct meg_trainer *t);
/*
 * Open checkpoint, device and tokenizer, check all options, and complete the run specification.  Unless --plan is
 * given, plan the data as well.
 */
int meg_train_check_and_plan(struct meg_trainer *t, struct meg_err *e);

/* ---- loaders.c ---- */

/*
 * Open the data files.  Compute the number of samples of each split, and the sequences of each file that each split
 * reads.  meg_train_build_data builds the index arrays later.
 */
int meg_train_plan_data(struct meg_trainer *t, struct meg_err *e);
/*
 * Build the index arrays on rank 0, which caches them.  After that, the other ranks read the cache, or build their own
 * arrays.
 */
int meg_train_build_data(struct meg_trainer *t, struct meg_err *e);
/* Open t->train, unless this run does not train, and t->valid. */
int meg_train_open_loaders(struct meg_trainer *t, struct meg_err *e);
/*
 * meg_train_open_eval - open the loaders of a split, which read each group after its first `consumed` samples
 * The caller closes *out with meg_train_close_eval, also after a failure.
 */
int meg_train_open_eval(struct meg_trainer *t, struct meg_train_eval *out, int split, int64_t consumed,
                        struct meg_err *e);
void meg_train_close_eval(struct meg_train_eval *v); /* accepts a zeroed *v */

/* ---- start_log.c ---- */

/*
 * meg_train_print_arguments - print on stdout, unless -q is given, Megatron's block of arguments
 *   options  lines "name = value"
 * meg_train_print_parameters - print on stdout of rank 0, unless -q is given, the number of parameters of each
 *                              tensor-parallel rank of each pipeline stage, in Megatron's form; collective over all
 *                              ranks
 * meg_train_report_epochs - print on stderr the epochs of each dataset, and warn if training repeats one too often
 */
void meg_train_print_arguments(const struct meg_trainer *t, const char *options);
void meg_train_print_parameters(const struct meg_trainer *t);
void meg_train_report_epochs(const struct meg_trainer *t);

/* ---- resume.c ---- */

/*
 * Open the checkpoint in the --load directory, if --load is given.  If the directory contains no checkpoint, return
 * MEG_ENOENT with --exit-on-missing-checkpoint, and otherwise warn.  With --use-checkpoint-args, and always if the
 * checkpoint is not native, set options from the checkpoint, except those on the command line.  The caller checks the
 * options later.
 */
int meg_train_open_checkpoint(struct meg_trainer *t, struct meg_err *e);
/*
 * Check that the model of the checkpoint, if there is one, matches the options, which are already checked.  If the run
 * resumes, read t->state, the dropout seed, the loss scale and the learning-rate schedule from the checkpoint, except
 * those that --no-load-rng, --no-load-optim or --skip-train exclude.
 */
int meg_train_read_state(struct meg_trainer *t, struct meg_err *e);
/*
 * Return MEG_EUSAGE if --save contains checkpoints of a run that this run does not resume, unless
 * --overwrite-checkpoints is given.
 */
int meg_train_check_save_dir(const struct meg_trainer *t, struct meg_err *e);
/*
 * Load the weights from the checkpoint and, if the run resumes without --no-load-optim, the optimizer state.  Without a
 * checkpoint, initialize the weights.
 */
int meg_train_load(struct meg_trainer *t, struct meg_err *e);
/* Load weights and optimizer state from iteration t->last_saved in --save; t->state is unchanged. */
int meg_train_roll_back(struct meg_trainer *t, struct meg_err *e);

/* ---- schedule_state.c: the learning-rate and weight-decay schedule in a checkpoint ---- */

json_t *meg_train_pack_schedule(const struct meg_lr_schedule *s);
/*
 * Choose the schedule of the command line with --override-opt_param-scheduler, or the checkpoint's with
 * --use-checkpoint-opt_param-scheduler.  Without these options, return MEG_EUSAGE if the two schedules differ.
 */
int meg_train_resolve_schedule(struct meg_trainer *t, const json_t *saved, const char *from, struct meg_err *e);

/* ---- checkpoint_shards.c ---- */

enum { MEG_TRAIN_MAX_OPTIM_SHARDS = 2 + MEG_MAX_STATES };
/*
 * Set `shard` to this rank's shards of the main parameters and of the optimizer states.  Main parameters are omitted if
 * the optimizer has none, or if the weights are f32 and so equal to them.  Return the number of shards.
 */
int meg_train_list_optim_shards(const struct meg_optim *o, struct meg_ckpt_shard shard[MEG_TRAIN_MAX_OPTIM_SHARDS]);
/* Return this rank's shard of the weights. */
struct meg_ckpt_shard meg_train_weight_shard(const struct meg_trainer *t);

/* ---- saving.c ---- */

/* The reaction to a failed save. */
enum meg_save_failure {
    MEG_SAVE_MAY_FAIL,      /* warn, because a later save follows; with --exit-on-save-failure, end the run */
    MEG_SAVE_MUST_NOT_FAIL, /* end the run */
    MEG_SAVE_BEFORE_ERROR   /* warn, because another error is about to end the run */
};

/*
 * Wait for the save in progress, if any.  Then save a checkpoint atomically; with --async-save, only start the save.
 * Returns an error only if a failed save ends the run.
 */
int meg_train_save(struct meg_trainer *t, enum meg_save_failure failure, struct meg_err *e);
/*
 * Save the current iteration because an error is about to end the run.  Does nothing without --save, with --skip-train
 * or before the first iteration.  Pass the error of this rank in e, or NULL if only other ranks failed.  If the
 * iteration is saved, the message of e is extended to say so.
 */
void meg_train_save_before_error(struct meg_trainer *t, struct meg_err *e);
/*
 * Advance the asynchronous save in progress, if any; if wait is true, wait until it ends.  If it fails, react as
 * `failure` states.  Collective over all ranks, between steps.
 */
int meg_train_save_poll(struct meg_trainer *t, bool wait, enum meg_save_failure failure, struct meg_err *e);

/* ---- progress.c: progress.txt of --log-progress ---- */
int meg_train_progress_log_start(struct meg_trainer *t, struct meg_err *e);
void meg_train_progress_log_save(struct meg_trainer *t, const struct meg_train_state *state);

/* ---- usage.c ---- */

/* Log how memory and communication of the run compare with the cost model; start_nbytes is the memory at the start. */
void meg_train_compare_usage(const struct meg_trainer *t, double start_nbytes);

/* ---- loop.c ---- */
int meg_train_loop(struct meg_trainer *t, struct meg_err *e);

/*
 * Compare the XXH3 hashes of replicated weights: of all weights over their data-parallel group, of unsharded weights
 * over the tensor-parallel ranks, of tied parameters over the pipeline stages that use them.  Collective over all
 * ranks.
 *
 * If replicas differ, the lowest rank that differs from the majority of its group (of two replicas, the second) returns
 * MEG_EFAIL, with a message that names the rank and the tensor.  The other ranks do not return.
 */
int meg_weight_hash_check(const struct meg_trainer *t, struct meg_err *e);
