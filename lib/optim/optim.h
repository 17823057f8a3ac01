/*
 * optim.h - the optimizer of a run: options, state, and the step from gradients to weights.
 *
 * In ZeRO stage 0, a rank updates all elements of the flat parameter buffer (params/param.h).  In stages 1 to 3, it
 * updates its shard of each bucket (optim/zero/shard.h).  optim/optimizer.h lists the optimizers.  If the parameters
 * are bf16 or f16, the optimizer updates f32 main parameters and rounds the result to the model's dtype.  In an f32
 * run, or with --main-params-dtype bf16, it updates the parameters in place.
 */
#pragma once
#include "device/graph.h"
#include "model/model.h"
#include "optim/lr.h"
#include "optim/nan_guard.h"
#include "optim/optimizer.h"
#include "optim/zero/shard.h"
#include "optim/zero/sync.h"
#include "option/opt.h"

struct meg_optim_conf {
    int optimizer; /* index in the list of optimizers, such as MEG_OPTIMIZER_ADAM (optim/optimizer.h) */
    double lr, min_lr, lr_warmup_init, lr_warmup_fraction, decoupled_lr, decoupled_min_lr;
    enum meg_lr_style lr_decay_style;
    enum meg_wsd_style lr_wsd_decay_style;
    int64_t lr_decay_iters, lr_decay_samples, lr_warmup_iters, lr_warmup_samples;
    int64_t lr_wsd_decay_iters, lr_wsd_decay_samples;
    double weight_decay, start_weight_decay, end_weight_decay;
    enum meg_wd_style weight_decay_incr_style;
    double clip_grad, adam_beta1, adam_beta2, adam_eps, sgd_momentum;
    enum meg_dtype main_params_dtype, exp_avg_dtype, exp_avg_sq_dtype; /* f32 or bf16 */
};
extern const struct meg_opt meg_optim_opts[];

/*
 * Check the options and make the schedules of learning rate and weight decay, in samples.  The run has train_samples
 * samples or, if train_samples is MEG_UNSET, train_iters iterations of global_batch samples.  Return MEG_EUSAGE if an
 * option is invalid, or if its unit (samples or iterations) is not the run's.
 */
int meg_lr_schedule_make(struct meg_lr_schedule *s, const struct meg_optim_conf *c, int64_t train_iters,
                         int64_t train_samples, int64_t global_batch, struct meg_err *e);

/*
 * Convert between a value of an enum and the choice of its option: "lr-decay-style", "lr-wsd-decay-style" or
 * "weight-decay-incr-style".  The parse function returns false if `word` is not a choice of the option.
 */
const char *meg_optim_choice(const char *option, int value);
bool meg_optim_parse_choice(const char *option, const char *word, int *value);

/* Bytes of the parameter shards (ZeRO-3), of the gradient shards (ZeRO-2/3), of main parameters, of all states. */
struct meg_optim_memory {
    size_t params, grads, main, state;
};

/* Arrays [shard.numel] in device memory, each of which concatenates this rank's bucket shards. */
struct meg_optim_buffers {
    void *state[MEG_MAX_STATES]; /* the states of the optimizer, initially zero */
    float *main; /* f32 main parameters; NULL: the optimizer updates parameters of the model's dtype in place */
};

enum { MEG_MAX_QUEUED_STEPS = 2 };

struct meg_optim {
    const struct meg_ops *op;
    struct meg_stream *stream;
    struct meg_model *model; /* borrowed, with its parameters and gradients */
    const struct meg_mesh *mesh;
    const struct meg_params *params;

    const struct meg_optimizer *optimizer;
    enum meg_dtype state_dtype[MEG_MAX_STATES];
    struct meg_adam adam;
    float momentum, clip;

    struct meg_zero_shard shard;              /* the elements that this rank updates */
    struct meg_zero_param_range *norm_ranges; /* [num_norm_ranges] ranges this rank counts in norms */
    int num_norm_ranges;
    struct meg_update_range *ranges; /* [shard.nparam_ranges] hyper-parameters of shard.param_range, in device memory */

    struct meg_optim_buffers buf;
    struct meg_optim_memory used;

    struct meg_nan_guard nan_guard;
    struct meg_tp_grads tp_grads;
    struct meg_zero_sync sync;

    struct meg_graphs graphs; /* used with run.uses_graphs of the model; a key is the address of a function */

    struct meg_step_record *record;                       /* record of the current step, in device memory */
    struct meg_step_record *result[MEG_MAX_QUEUED_STEPS]; /* pinned: records of the last steps */
    struct meg_event *result_done[MEG_MAX_QUEUED_STEPS];
    int64_t num_ended, num_read; /* calls of meg_optim_end and meg_optim_result */
    int64_t step_count;          /* number of updates so far, among the steps whose results were read */
};

/* Compute the sizes of the buffers that meg_optim_create allocates.  meg_zero_fit must have set l->zero. */
void meg_optim_memory_size(struct meg_optim_memory *m, const struct meg_optim_conf *c, const struct meg_params *params,
                           const struct meg_layout *l, const struct meg_model_run *run);

/*
 * Create the optimizer of a model and install its callbacks in model->hooks.  The model must outlive the optimizer.
 * Return MEG_EFAIL if device memory is exhausted.
 */
int meg_optim_create(struct meg_optim **out, const struct meg_optim_conf *c, const struct meg_zero_conf *zero,
                     struct meg_model *model, struct meg_err *e);
void meg_optim_close(struct meg_optim *o);

/* Initialize the model's parameters from the seed, and the main parameters from the model's. */
void meg_optim_init(struct meg_optim *o, uint32_t seed);
/*
 * Update the optimizer after a checkpoint was loaded into the model's parameters.  Convert the model's parameters to
 * main parameters, unless these were loaded as well (has_main).  With ZeRO-3, discard gathered layers.
 */
void meg_optim_reload_params(struct meg_optim *o, bool has_main);

/*
 * Set the number of updates so far, without skipped steps, and the loss scale, for example from a checkpoint.
 * Initially, the number is 0 and the loss is not scaled.  The results of all steps must have been read.
 */
void meg_optim_restore(struct meg_optim *o, int64_t step_count, const struct meg_scaler *scaler);

/*
 * ---- one step ----
 *
 * The calls of a step are, in this order: meg_optim_begin; backward passes of the model; meg_optim_reduce_grads,
 * meg_optim_decide, meg_optim_update and meg_optim_end, which queue operations and do not wait for the device;
 * meg_optim_result, which waits for the device.
 *
 * Optional calls add sums to the record of the step: meg_optim_sum_losses and meg_optim_count_zeros between
 * meg_optim_reduce_grads and meg_optim_decide, meg_optim_sum_params between meg_optim_update and meg_optim_end.
 */

/*
 * Begin a step of num_passes backward passes through each layer group: set the sums of the record to zero, and discard
 * the gradients of the previous step (meg_model_zero_grads).  If check_finite is true, check this rank's gradients for
 * NaN and Inf before they are reduced.
 */
void meg_optim_begin(struct meg_optim *o, int64_t num_passes, bool check_finite);
/* Finish the data-parallel reduction of this step's gradients (optim/zero/sync.h). */
void meg_optim_reduce_grads(struct meg_optim *o);
/*
 * Set sums.local_loss to the model's loss_sum, and sums.loss to its sum over all pipeline stages and over the data- and
 * context-parallel ranks.  Set sums.loss_divisor to the sum of loss_divisor, the number of terms on this rank, over the
 * data- and context-parallel ranks.
 */
void meg_optim_sum_losses(struct meg_optim *o, double loss_divisor);
/* Set sums.num_zeros, the number of gradient elements that are exactly zero, without frozen parameters. */
void meg_optim_count_zeros(struct meg_optim *o);

/* Hyper-parameters of one step. */
struct meg_optim_rates {
    double lr, decoupled_lr, weight_decay;
};

struct meg_optim_step {
    /*
     * If the result of the previous step was read, rates[0] applies.  Otherwise, the device selects rates[0] if the
     * previous step was skipped, and rates[1] if it was not.
     */
    struct meg_optim_rates rates[2];
    bool has_grad_norm;   /* compute the gradient norm; required by clipping, skips_nonfinite and loss scaling */
    bool is_per_token;    /* divide the gradients by sums.loss_divisor */
    bool skips_nonfinite; /* skip the update if the loss or the norm is not finite, even without loss scaling */
};

/*
 * If s->has_grad_norm, sum the squares of the gradients.  Then decide, on the device, whether this step updates the
 * parameters.  Compute the factor that unscales, averages and clips the gradients (tensor/step.h).
 */
void meg_optim_decide(struct meg_optim *o, const struct meg_optim_step *s);
/*
 * Update the parameters unless the step is skipped, and distribute the updated parameters (optim/zero/sync.h).
 */
void meg_optim_update(struct meg_optim *o);
/* Set sums.param_sumsq, the sum of squares of the updated parameters. */
void meg_optim_sum_params(struct meg_optim *o);

/* End the step: queue the download of its record.  At most MEG_MAX_QUEUED_STEPS steps may have unread records. */
void meg_optim_end(struct meg_optim *o);
/*
 * Wait for the oldest step whose record was not read, and return the record.  The record is valid until meg_optim_end
 * ends the MEG_MAX_QUEUED_STEPS-th step after this one.
 */
const struct meg_step_record *meg_optim_result(struct meg_optim *o);

/* With --overlap-param-gather, wait until all updated parameters have arrived. */
void meg_optim_finish_param_sync(struct meg_optim *o);
