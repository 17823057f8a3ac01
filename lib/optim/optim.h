/*
 * optim.h - the optimizer of a run: options, state, and the step from gradients to weights.
 *
 * A rank updates all elements of the flat parameter buffer (model/param.h) or, with the distributed optimizer, one
 * shard of each bucket (optim/zero/shard.h).  Optimizer state is f32 and concatenates the bucket shards: AdamW keeps
 * exp_avg and exp_avg_sq, SGD its momentum.  If the parameters are bf16 or f16, there are also f32 main parameters: the
 * optimizer updates the main parameters and then rounds them to the model's parameters.  With ZeRO-3, f32 parameters
 * are kept as main parameters, too.
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
 * Check the options and convert them to a schedule over samples, in which an iteration counts as global_batch samples.
 * The length of the run is train_samples or, if train_samples is MEG_UNSET, train_iters; options in the other unit are
 * rejected.  The message of MEG_EUSAGE names the option, its value and the rule.
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

/*
 * Bytes of the buffers in struct meg_optim_buffers: params counts param_shards, grads counts grad_shards, and state
 * counts all moments.
 */
struct meg_optim_memory {
    size_t params, grads, main, main_grad, state;
};

/* Arrays [shard.numel] in device memory: the concatenated bucket shards of this rank. */
struct meg_optim_buffers {
    float *state[2];    /* moments, initially zero */
    float *main;        /* f32 main parameters; NULL: the optimizer updates the model's parameters in place */
    float *main_grad;   /* f32 gradients of the main parameters; NULL: the optimizer uses the model's gradients */
    void *param_shards; /* ZeRO-3: parameter shards in the model's dtype; NULL if that is f32, or below ZeRO-3 */
    void *grad_shards;  /* ZeRO-2/3: gradient shards in the gradient dtype; NULL if that is f32, or below ZeRO-2 */
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
    struct meg_zero_param_range *norm_ranges; /* [num_norm_ranges] ranges this rank counts in sums over the model */
    int num_norm_ranges;

    int nstates;
    const char *state_name[2]; /* exp_avg and exp_avg_sq, or momentum_buffer */
    struct meg_optim_buffers buf;
    struct meg_optim_memory used; /* bytes in use in each buffer */

    struct meg_nan_guard nan_guard;
    struct meg_zero_sync sync;

    int64_t step_count;            /* successful steps so far */
    struct meg_step_hparams *step; /* device memory */
    void *scalar;                  /* device memory, 8 bytes: the result of a reduction */
};

/* Compute the bytes that meg_optim_create allocates for a rank of layout l, whose field zero meg_zero_fit has set. */
void meg_optim_memory_size(struct meg_optim_memory *m, const struct meg_optim_conf *c, const struct meg_params *params,
                           const struct meg_layout *l, const struct meg_gpt_run *run);

/*
 * Create the optimizer of a model and install its callbacks as model->hooks.  model is borrowed until meg_optim_close.
 * Fail with MEG_EFAIL if memory is exhausted.
 */
int meg_optim_create(struct meg_optim **out, const struct meg_optim_conf *c, const struct meg_zero_conf *zero,
                     struct meg_gpt *model, struct meg_err *e);
void meg_optim_close(struct meg_optim *o);

/* Initialize the weights, as meg_gpt_init does. */
void meg_optim_init(struct meg_optim *o, uint32_t seed);
/* ZeRO-3: return this rank's parameter shards in the model's dtype; NULL in other stages. */
void *meg_optim_param_shards(const struct meg_optim *o);
/*
 * Call this after the model's parameters were loaded.  Copy them to the main parameters, unless has_main is true
 * because the main parameters were loaded too, and discard gathered layers.
 */
void meg_optim_reload_params(struct meg_optim *o, bool has_main);

/*
 * Begin a step of num_passes backward passes through each layer group.  With check_finite, check this rank's gradients
 * for NaN and Inf before they are reduced; meg_optim_nonfinite returns the result.
 */
void meg_optim_begin(struct meg_optim *o, int64_t num_passes, bool check_finite);
/*
 * Finish the reduction of the gradients (optim/zero/grad_reduce.h), after which all replicas of a parameter, or of a
 * shard of it, have equal gradients.
 */
void meg_optim_reduce_grads(struct meg_optim *o);

/* ---- reductions over the model, with equal results on every rank; collective ---- */

/* Return the L2 norm of `scale` times the gradients; NaN or Inf iff a gradient is NaN or Inf. */
double meg_optim_grad_norm(struct meg_optim *o, double scale);
/* Return the L2 norm of the weights. */
double meg_optim_params_norm(struct meg_optim *o);
/* Count the gradient elements that are exactly zero. */
int64_t meg_optim_num_zeros(struct meg_optim *o);

/*
 * Return the first parameter, in backward order, whose gradient on this rank was NaN or Inf before it was reduced.
 * Return NULL if there is none.
 */
const struct meg_param *meg_optim_nonfinite(const struct meg_optim *o);

/* The scheduled values of one step. */
struct meg_optim_rates {
    double lr, decoupled_lr, weight_decay;
    double grad_scale; /* factor applied to the gradients: 1 / (loss scale * tokens), or 1 / loss scale */
};

/*
 * Scale the gradients, clip them if norm (from meg_optim_grad_norm; NaN: never clip) is above the limit, update the
 * weights, and zero the gradients.
 */
void meg_optim_update(struct meg_optim *o, const struct meg_optim_rates *r, double norm);
/* Zero the gradients without updating the weights, for a skipped step. */
void meg_optim_zero_grad(struct meg_optim *o);
/* With --overlap-param-gather, wait until all updated parameters have arrived. */
void meg_optim_finish_param_sync(struct meg_optim *o);

MEG_END_DECLS
#endif
