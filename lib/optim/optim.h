/*
 * The optimizer of a run: settings, state, and the step from gradients to weights.
 *
 * A rank updates pieces of the flat parameter buffer (model/param.h): all of it, or with the distributed
 * optimizer its slices (optim/zero/shard.h).  State is f32 and holds the pieces one behind the other: AdamW
 * keeps exp_avg and exp_avg_sq, SGD its momentum.  Where parameters are bf16 or f16 there are f32 main
 * parameters, too, which are updated; the model's are those rounded.
 */
#ifndef MEG_OPTIM_OPTIM_H
#define MEG_OPTIM_OPTIM_H
#include "model/gpt.h"
#include "optim/batch.h"
#include "optim/lr.h"
#include "optim/zero/grad_reduce.h"
#include "optim/zero/layerwise.h"
#include "optim/zero/shard.h"
#include "option/opt.h"

MEG_BEGIN_DECLS

struct meg_optim_conf {
    const char *optimizer; /* adam or sgd */
    double lr, min_lr, lr_warmup_init, lr_warmup_fraction, decoupled_lr, decoupled_min_lr;
    const char *lr_decay_style, *lr_wsd_decay_style;
    int64_t lr_decay_iters, lr_decay_samples, lr_warmup_iters, lr_warmup_samples;
    int64_t lr_wsd_decay_iters, lr_wsd_decay_samples;
    double weight_decay, start_weight_decay, end_weight_decay;
    const char *weight_decay_incr_style;
    double clip_grad, adam_beta1, adam_beta2, adam_eps, sgd_momentum;
};
extern const struct meg_opt meg_optim_opts[];

/*
 * Check the settings and turn them into a schedule over samples.  Iterations count global_batch samples.
 * A run is given in iterations or in samples; train_samples is MEG_UNSET in the first case, and the
 * options that count the other way are refused.  MEG_EUSAGE names the option, its value and the rule.
 */
int meg_lr_schedule_make(struct meg_lr_schedule *s, const struct meg_optim_conf *c, int64_t train_iters,
                         int64_t train_samples, int64_t global_batch, struct meg_err *e);

/* The word of the command line for a style, and the style of a word; false when it is none. */
const char *meg_lr_style_name(enum meg_lr_style style);
const char *meg_wd_style_name(enum meg_wd_style style);
bool meg_lr_style_parse(const char *word, enum meg_lr_style *style);
bool meg_wd_style_parse(const char *word, enum meg_wd_style *style);

/* Bytes of arrays: o->w, o->g, o->main, o->main_grad, and o->state in all. */
struct meg_optim_memory {
    size_t params, grads, main, main_grad, state;
};

struct meg_optim {
    const struct meg_ops *op;
    struct meg_gpt *model; /* borrowed, with its parameters and gradients */
    const struct meg_mesh *mesh;
    const struct meg_params *params;
    struct meg_adam adam;
    float momentum, clip;
    bool is_sgd, overlaps_param_gather;
    struct meg_zero_shard shard;              /* the pieces this rank updates */
    struct meg_zero_param_range *norm_ranges; /* of them, what this rank adds to sums over the model */
    int num_norm_ranges, nstates;
    const char *state_name[2];    /* exp_avg, exp_avg_sq | momentum_buffer */
    float *state[2];              /* [share.n] device memory, zero at first */
    float *main;                  /* [share.n] main parameters; NULL: the model's are */
    float *main_grad;             /* [share.n] their gradients; NULL: the model's are */
    void *param_shards;           /* [share.n] parameters of the model's type, where that has a section's at a time
                                    and main are not of that type; else NULL */
    void *grad_shards;            /* [share.n] gradients of the model's type, where that has a section's at a time and
                                    main ones are not of that type; else NULL */
    struct meg_optim_memory used; /* bytes of these that pieces take */
    struct meg_nan_guard nan_guard;
    struct meg_reducer reducer; /* of whole gradients and parameters; or */
    struct meg_gatherer gatherer;
    struct meg_layer_reducer layer_reducer; /* of those of a section at a time */
    struct meg_layer_gatherer layer_gatherer;
    int64_t step_count;            /* successful steps so far */
    struct meg_step_hparams *step; /* device memory */
    void *scalar;                  /* device memory, 8 bytes, for sums */
};

/* What meg_optim_create allocates, for a rank of a layout that meg_zero_fit has settled. */
void meg_optim_memory_size(struct meg_optim_memory *m, const struct meg_optim_conf *c, const struct meg_params *params,
                           const struct meg_layout *l, const struct meg_gpt_run *run);

/*
 * For the parameters and gradients of model, which must outlive it and whose hooks it takes.  MEG_EFAIL when
 * memory does not suffice.
 */
int meg_optim_create(struct meg_optim **out, const struct meg_optim_conf *c, const struct meg_zero_conf *share,
                     struct meg_gpt *model, struct meg_err *e);
void meg_optim_close(struct meg_optim *o);

/* Initial weights, as meg_gpt_init. */
void meg_optim_init(struct meg_optim *o, uint32_t seed);
/* What this rank has of the parameters in the model's type, where the model has a section's at a time; else NULL. */
void *meg_optim_param_shards(const struct meg_optim *o);
/* The model's parameters were loaded; main parameters, too, or they are to be those. */
void meg_optim_reload_params(struct meg_optim *o, bool has_main);

/*
 * A step's backward passes are to come: so many through each section.  With watches, this rank's own
 * gradients are looked at before they become part of a sum, for meg_optim_nonfinite.
 */
void meg_optim_begin(struct meg_optim *o, int64_t passes, bool watches);
/*
 * Add up the gradients of all ranks that saw other tokens, so that copies of a parameter have equal ones.
 * The following are sums over the whole model, equal on every rank.
 */
void meg_optim_reduce_grads(struct meg_optim *o);

/* sqrt(sum of squares) of scale times the gradients; not finite iff one of them is not. */
double meg_optim_grad_norm(struct meg_optim *o, double scale);
/* sqrt(sum of squares) of the weights. */
double meg_optim_params_norm(struct meg_optim *o);
/* Gradient elements that are exactly zero. */
int64_t meg_optim_num_zeros(struct meg_optim *o);
/*
 * A parameter whose gradient was not finite on this rank before the sums, the first that backward came to;
 * NULL: there is none.
 */
const struct meg_param *meg_optim_nonfinite(const struct meg_optim *o);

/* What one step runs with. */
struct meg_optim_rates {
    double lr, decoupled_lr, weight_decay;
    double grad_scale; /* the gradients in g are this times too small */
};

/*
 * Scale the gradients, clip them where norm (as from meg_optim_grad_norm; NaN: do not) is above the
 * limit, update the weights, and zero the gradients.
 */
void meg_optim_update(struct meg_optim *o, const struct meg_optim_rates *r, double norm);
/* Zero the gradients and do nothing else. */
void meg_optim_zero_grad(struct meg_optim *o);
/* After an update with --overlap-param-gather some parameters may be on their way still: wait for them. */
void meg_optim_finish_param_sync(struct meg_optim *o);

MEG_END_DECLS
#endif
