/*
 * optim.h - the optimizer of a run: options, state, and the step from gradients to weights.
 *
 * A rank updates all elements of the flat parameter buffer (model/param.h) or, in ZeRO stages 1 to 3, its shard of each
 * bucket (optim/zero/shard.h).  Optimizer state is f32: AdamW keeps exp_avg and exp_avg_sq, SGD its momentum.  If the
 * parameters are bf16 or f16, the optimizer updates f32 main parameters and then rounds them to the model's dtype.
 * With ZeRO-3, main parameters also exist in an f32 run: they are the rank's shards of the parameters.
 */
#ifndef MEG_OPTIM_OPTIM_H
#define MEG_OPTIM_OPTIM_H
#include "model/gpt.h"
#include "optim/batch.h"
#include "optim/lr.h"
#include "optim/nan_guard.h"
#include "optim/zero/shard.h"
#include "optim/zero/sync.h"
#include "option/opt.h"

MEG_BEGIN_DECLS

/* Values of --optimizer, in the order in which the option lists them. */
enum meg_optimizer { MEG_OPTIMIZER_ADAM, MEG_OPTIMIZER_SGD };

struct meg_optim_conf {
    enum meg_optimizer optimizer;
    double lr, min_lr, lr_warmup_init, lr_warmup_fraction, decoupled_lr, decoupled_min_lr;
    enum meg_lr_style lr_decay_style;
    enum meg_wsd_style lr_wsd_decay_style;
    int64_t lr_decay_iters, lr_decay_samples, lr_warmup_iters, lr_warmup_samples;
    int64_t lr_wsd_decay_iters, lr_wsd_decay_samples;
    double weight_decay, start_weight_decay, end_weight_decay;
    enum meg_wd_style weight_decay_incr_style;
    double clip_grad, adam_beta1, adam_beta2, adam_eps, sgd_momentum;
};
extern const struct meg_opt meg_optim_opts[];

/*
 * Check the options and make the schedules of learning rate and weight decay, in samples.  The run has train_samples
 * samples or, if train_samples is MEG_UNSET, train_iters iterations of global_batch samples.  Return MEG_EUSAGE if an
 * option is invalid, or if its unit (samples or iterations) is not that of the run.
 */
int meg_lr_schedule_make(struct meg_lr_schedule *s, const struct meg_optim_conf *c, int64_t train_iters,
                         int64_t train_samples, int64_t global_batch, struct meg_err *e);

/*
 * Convert between the enums and the values of --lr-decay-style and --weight-decay-incr-style.  The parse functions
 * return false for an unknown word.
 */
const char *meg_lr_style_name(enum meg_lr_style style);
const char *meg_wd_style_name(enum meg_wd_style style);
bool meg_lr_style_parse(const char *word, enum meg_lr_style *style);
bool meg_wd_style_parse(const char *word, enum meg_wd_style *style);

/* Bytes in each buffer of struct meg_optim_buffers: param_shards, grad_shards, main, main_grad, all of state. */
struct meg_optim_memory {
    size_t params, grads, main, main_grad, state;
};

/* Arrays [shard.numel] in device memory, each of which concatenates this rank's bucket shards. */
struct meg_optim_buffers {
    float *state[2];    /* state_name[0] and state_name[1], initially zero; state[1] is NULL with SGD */
    float *main;        /* f32 main parameters; NULL: the optimizer updates the model's parameters in place */
    float *main_grad;   /* f32 gradients of the main parameters; NULL: the optimizer uses the model's gradients */
    void *param_shards; /* ZeRO-3: parameter shards in the model's dtype; NULL if it is f32 or in other stages */
    void *grad_shards;  /* ZeRO-2/3: gradient shards in the gradient dtype; NULL if it is f32 or in other stages */
};

struct meg_optim {
    const struct meg_ops *op;
    struct meg_stream *stream;
    struct meg_gpt *model; /* borrowed, with its parameters and gradients */
    const struct meg_mesh *mesh;
    const struct meg_params *params;

    bool is_sgd;
    struct meg_adam adam;
    float momentum, clip;

    struct meg_zero_shard shard;              /* the elements that this rank updates */
    struct meg_zero_param_range *norm_ranges; /* [num_norm_ranges] ranges this rank counts in norms */
    int num_norm_ranges;

    int nstates;
    const char *state_name[2]; /* exp_avg and exp_avg_sq, or momentum_buffer */
    struct meg_optim_buffers buf;
    struct meg_optim_memory used;

    struct meg_nan_guard nan_guard;
    struct meg_zero_sync sync;

    int64_t step_count;            /* number of updates so far, without skipped steps */
    struct meg_step_hparams *step; /* hyper-parameters of the current step, in device memory */
    void *scalar;                  /* sum of squares (f64) or count (i64), in device memory */
};

/* Compute the sizes of the buffers that meg_optim_create allocates.  meg_zero_fit must have set l->zero. */
void meg_optim_memory_size(struct meg_optim_memory *m, const struct meg_optim_conf *c, const struct meg_params *params,
                           const struct meg_layout *l, const struct meg_gpt_run *run);

/*
 * Create the optimizer of a model and install its callbacks in model->hooks.  The model must outlive the optimizer.
 * Return MEG_EFAIL if device memory is exhausted.
 */
int meg_optim_create(struct meg_optim **out, const struct meg_optim_conf *c, const struct meg_zero_conf *zero,
                     struct meg_gpt *model, struct meg_err *e);
void meg_optim_close(struct meg_optim *o);

/* Initialize the model's parameters from the seed, and the main parameters from the model's. */
void meg_optim_init(struct meg_optim *o, uint32_t seed);
/* ZeRO-3: return this rank's parameter shards in the model's dtype; NULL in other stages. */
void *meg_optim_param_shards(const struct meg_optim *o);
/*
 * Call this after a checkpoint was loaded into the model's parameters.  Unless has_main is true because the checkpoint
 * also had main parameters, convert the model's parameters to main parameters.  With ZeRO-3, discard gathered layers.
 */
void meg_optim_reload_params(struct meg_optim *o, bool has_main);

/*
 * Begin a step of num_passes backward passes through each layer group.  If check_finite is true, check this rank's
 * gradients for NaN and Inf before they are reduced; meg_optim_nonfinite returns the result.
 */
void meg_optim_begin(struct meg_optim *o, int64_t num_passes, bool check_finite);
/* Finish the data-parallel reduction of this step's gradients (optim/zero/sync.h), and convert them to f32. */
void meg_optim_reduce_grads(struct meg_optim *o);

/* ---- reductions over the model, with equal results on every rank; collective ---- */

/* Return `scale` times the L2 norm of the gradients.  The norm is NaN or Inf if a gradient is. */
double meg_optim_grad_norm(struct meg_optim *o, double scale);
/* Return the L2 norm of the parameters. */
double meg_optim_params_norm(struct meg_optim *o);
/* Count the gradient elements that are exactly zero. */
int64_t meg_optim_num_zeros(struct meg_optim *o);

/*
 * Return the first parameter, in backward order, whose gradient on this rank contained a NaN or Inf before the
 * reduction.  Return NULL if there is none, or if meg_optim_begin was called with check_finite false.
 */
const struct meg_param *meg_optim_nonfinite(const struct meg_optim *o);

/* Hyper-parameters of one step. */
struct meg_optim_rates {
    double lr, decoupled_lr, weight_decay;
    double grad_scale; /* 1 / loss scale; with --calculate-per-token-loss, 1 / (loss scale * unmasked tokens) */
};

/*
 * Update the parameters with the gradients times r->grad_scale, zero the gradients, and distribute the updated
 * parameters (optim/zero/sync.h).  `norm` is the result of meg_optim_grad_norm: if it is above --clip-grad, the
 * gradients are clipped.  NaN disables clipping.
 */
void meg_optim_update(struct meg_optim *o, const struct meg_optim_rates *r, double norm);
/* Zero the gradients of a skipped step. */
void meg_optim_zero_grad(struct meg_optim *o);
/* With --overlap-param-gather, wait until all updated parameters have arrived. */
void meg_optim_finish_param_sync(struct meg_optim *o);

MEG_END_DECLS
#endif
