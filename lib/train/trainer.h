/*
 * trainer.h - the state of a training run, and the functions of lib/train that use it.
 */
#ifndef MEG_TRAIN_TRAINER_H
#define MEG_TRAIN_TRAINER_H
#include "ckpt/ckpt.h"
#include "data/gpt_data.h"
#include "data/loader.h"
#include "file/lock.h"
#include "logging/logger.h"
#include "parallel/pipeline.h"
#include "plan/cost.h"
#include "run/run_spec.h"
#include "train/straggler.h"

MEG_BEGIN_DECLS

/* The progress of a run, which a checkpoint stores besides weights and optimizer state. */
struct meg_train_state {
    int64_t iteration;
    int64_t consumed_train, consumed_valid; /* samples read so far; the loaders resume after them */
    int64_t skipped_samples;                /* samples skipped by --decrease-batch-size-if-needed */
    /* position in the schedules: samples of the iterations that were not skipped */
    int64_t lr_steps;
};

/* The micro-batches of a step or evaluation on this rank. */
struct meg_train_batches {
    struct meg_batch *micro; /* [cap] */
    double *scale;           /* [cap] factor by which the summed loss of each micro-batch is scaled before backward */
    int64_t cap;
    double tokens; /* unmasked tokens of all micro-batches */
};

/* The pipeline schedule for the current number of micro-batches, and its communication buffers. */
struct meg_train_pipeline {
    struct meg_pipe_schedule schedule;
    struct meg_pipe_tensor tensor; /* tensor that stages send to each other */
    struct meg_pipe pipe;
    void *memory;       /* device memory of the boundary buffers */
    size_t memory_size; /* bytes */
    double loss;        /* sum of the losses of the micro-batches so far */
};

struct meg_trainer {
    struct meg_train_job *job;
    const struct meg_optgroup *groups; /* option groups of the job; checkpoints store their dump */
    struct meg_run_spec spec;
    const struct meg_device *device;
    struct meg_mesh mesh; /* world is set first, the other groups once the model is known */
    struct meg_lock lock; /* lock on the --save directory, held by rank 0 */
    struct meg_lr_schedule lr_schedule;
    struct meg_scaler scaler;
    struct meg_tokenizer *tokenizer;
    struct meg_ckpt_tokenizer tok_files;
    struct meg_dataset_spec dataset_spec;
    struct meg_data_splits *data;
    struct meg_data_loader *train, *valid; /* NULL: no samples to read */
    struct meg_gpt *model;
    struct meg_optim *optim; /* NULL with --skip-train */
    struct meg_train_batches batches;
    struct meg_train_pipeline pipeline;
    struct meg_logger *logger; /* NULL except on rank 0 */
    struct meg_straggler straggler;

    struct meg_train_state state;
    /*
     * Consecutive iterations with NaN or Inf, without those that reduce a dynamic loss scale; MEG_NAN_MAX_CONSECUTIVE
     * of them end the run.
     */
    int64_t num_consecutive_nan;
    double start_s, start_flops; /* time and model FLOP at the start of this process */

    struct meg_ckpt *checkpoint;            /* checkpoint that the run starts from, or NULL */
    int64_t checkpoint_optim_steps;         /* optimizer steps stored in that checkpoint */
    struct meg_ckpt_async_save *async_save; /* save in progress, or NULL */
    struct meg_train_state async_save_state;
    int64_t last_saved;       /* newest iteration in --save, including async_save; -1: none */
    int64_t last_committed;   /* newest iteration in --save, excluding async_save; -1: none */
    int64_t loaded_iteration; /* iteration in --save from which the run resumed; -1: none */

    double comm_bytes[MEG_COST_GROUPS]; /* bytes that this rank sent in the last step */
    int64_t comm_num_micro;             /* micro-batches of the last step; 0: no step was run */
};

/* The results of one iteration. */
struct meg_step_result {
    struct meg_batch_size batch;
    double lm_loss, grad_norm, params_norm, seconds;
    int64_t num_zeros;
    bool is_skipped; /* no update, because of --on-nan or the loss scale */
};

/* ---- rank_consensus.c: agreement of all ranks ---- */

static inline bool meg_train_is_rank0(const struct meg_trainer *t)
{
    return t->mesh.world->rank == 0;
}

/*
 * Compare the results of all ranks after a step that each of them runs.  Returns 0 when all succeeded.  Otherwise the
 * first failed rank returns its r, and the other ranks wait until the meg_die of that rank ends them.
 */
int meg_train_agree_or_exit(const struct meg_trainer *t, int r);
/*
 * Handle a failure that every rank detects: return r on rank 0; the other ranks wait until the meg_die of rank 0 ends
 * them.
 */
int meg_train_fail_on_rank0(const struct meg_trainer *t, int r);
/*
 * Check that all ranks read the same tokenizer files, checkpoint and data.  Otherwise a rank that differs returns
 * MEG_EFORMAT with a message that names the file, and the others do not return.
 */
int meg_train_check_inputs(const struct meg_trainer *t, struct meg_err *e);
/* Return whether any rank received a signal to stop.  Collective. */
bool meg_train_stop_requested(const struct meg_trainer *t);
double meg_train_max_over_ranks(const struct meg_trainer *t, double x);

/* ---- run_pipeline.c: run micro-batches through the pipeline schedule ---- */

/*
 * Read the next num_micro micro-batches into t->batches.  Collective over all ranks.  If a rank fails, all ranks save a
 * checkpoint (with --save, after the first iteration), and the first failed rank returns its error.
 */
int meg_train_read_batches(struct meg_trainer *t, struct meg_data_loader *l, int64_t num_micro, struct meg_err *e);
void meg_train_batches_free(struct meg_train_batches *b);

/*
 * Run forward, and backward if training, over t->batches; gradients accumulate.  Dropout is disabled in evaluation.
 * *loss is the sum of loss times loss mask on the last stage, 0 on the others.  Returns MEG_EFAIL if memory allocation
 * fails.
 */
int meg_train_run_pipeline(struct meg_trainer *t, int64_t num_micro, bool is_training, double *loss, struct meg_err *e);
void meg_train_pipeline_free(struct meg_trainer *t);

/* ---- step.c: one iteration ---- */

/* Return whether --on-nan applies to NaN and Inf.  With a dynamic loss scale, check_overflow handles them instead. */
static inline bool meg_train_checks_nan(const struct meg_trainer *t)
{
    return t->job->train.check_for_nan && t->scaler.type != MEG_SCALER_DYNAMIC;
}

/* Return the current learning rate of the word embedding and the output layer. */
double meg_train_decoupled_lr(const struct meg_trainer *t);

/*
 * Run one iteration: forward and backward of a global batch and, unless the iteration is skipped, gradient clipping and
 * the optimizer update.  Advances t->state.
 */
int meg_train_step(struct meg_trainer *t, struct meg_step_result *out, struct meg_err *e);

/*
 * Compute the mean loss over --eval-iters global batches of l.  A stop request ends the evaluation early, with *loss
 * NaN.
 */
int meg_train_evaluate(struct meg_trainer *t, struct meg_data_loader *l, const char *split, double *loss,
                       struct meg_err *e);

/* ---- setup.c ---- */

/* Open a loader of a split that skips the first consumed samples; *out is NULL when the split has no data. */
int meg_train_open_loader(struct meg_trainer *t, struct meg_data_loader **out, int split, int64_t consumed,
                          struct meg_err *e);

/* ---- checkpointing.c: save, load, resume ---- */

/*
 * Open the --load checkpoint.  With --use-checkpoint-args, or if it is not in meg's format, apply its options without
 * checking them.
 */
int meg_train_open_checkpoint(struct meg_trainer *t, struct meg_err *e);
/* Check that the checkpoint matches the (checked) options, and read the state to resume from. */
int meg_train_read_state(struct meg_trainer *t, struct meg_err *e);
/*
 * Refuse to overwrite the checkpoints of a run that this run does not resume (MEG_EUSAGE), unless
 * --overwrite-checkpoints is given.
 */
int meg_train_check_save_dir(const struct meg_trainer *t, struct meg_err *e);
/*
 * Load the weights and, when the run resumes, the optimizer state from the checkpoint; initialize what is not loaded.
 */
int meg_train_load(struct meg_trainer *t, struct meg_err *e);
/* Load weights and optimizer state from the newest checkpoint in --save; t->state is unchanged. */
int meg_train_roll_back(struct meg_trainer *t, struct meg_err *e);
/*
 * Determines whether a failed save is a warning or ends the run.  MEG_SAVE_MAY_FAIL: a later save follows, so a failed
 * save is a warning unless --exit-on-save-failure is given.
 */
enum meg_save_failure {
    MEG_SAVE_MAY_FAIL,
    MEG_SAVE_MUST_NOT_FAIL,
    MEG_SAVE_BEFORE_ERROR /* another error is about to end the run; a failed save is a warning */
};

/* Save a checkpoint atomically; with --async-save, only start the save. */
int meg_train_save(struct meg_trainer *t, enum meg_save_failure failure, struct meg_err *e);
/*
 * Save before the run ends with the error *e, and, if the iteration is saved, append this to the message of e.  e is
 * NULL if another rank has the error.
 */
void meg_train_save_before_error(struct meg_trainer *t, struct meg_err *e);
/* Advance the asynchronous save, or finish it if wait is true.  Collective over all ranks, between steps. */
int meg_train_save_poll(struct meg_trainer *t, bool wait, enum meg_save_failure failure, struct meg_err *e);

/* ---- progress.c: progress.txt of --log-progress ---- */
int meg_train_progress_log_start(struct meg_trainer *t, struct meg_err *e);
void meg_train_progress_log_save(struct meg_trainer *t, const struct meg_train_state *state);

/* ---- loop.c ---- */
int meg_train_loop(struct meg_trainer *t, struct meg_err *e);

MEG_END_DECLS
#endif
