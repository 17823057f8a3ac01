/*
 * The optimizer of a run: settings, state, and the step from gradients to weights.
 *
 * State has the layout of the flat parameter buffer (model/param.h), f32: AdamW keeps exp_avg and
 * exp_avg_sq, SGD its momentum.  All operations run over ranges of it.
 */
#ifndef MEG_OPTIM_OPTIM_H
#define MEG_OPTIM_OPTIM_H
#include "base/opt.h"
#include "model/gpt.h"
#include "optim/batch.h"
#include "optim/lr.h"

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
int meg_schedule_make(struct meg_schedule *s, const struct meg_optim_conf *c, int64_t train_iters,
                      int64_t train_samples, int64_t global_batch, struct meg_err *e);

/* The word of the command line for a style, and the style of a word; false when it is none. */
const char *meg_lr_style_name(enum meg_lr_style style);
const char *meg_wd_style_name(enum meg_wd_style style);
bool meg_lr_style_of(const char *word, enum meg_lr_style *style);
bool meg_wd_style_of(const char *word, enum meg_wd_style *style);

/* Elements [begin, end) of the flat buffer. */
struct meg_span {
    int64_t begin, end;
};

struct meg_optim {
    const struct meg_ops *op;
    const struct meg_mesh *mesh;
    const struct meg_params *params;
    struct meg_adam adam;
    float momentum, clip;
    bool is_sgd;
    struct meg_range *range;
    int nranges, nstates;
    struct meg_span *counted;  /* of the flat buffer, what this rank adds to sums over the model */
    int ncounted;
    const char *state_name[2]; /* exp_avg, exp_avg_sq | momentum_buffer */
    float *state[2];           /* [params->flat] device memory, zero at first */
    float *w, *g;              /* the model's, borrowed */
    int64_t t;                 /* successful steps so far */
    struct meg_step *step;     /* device memory */
    void *scalar;              /* device memory, 8 bytes, for sums */
};

/* Bytes of state that meg_optim_create allocates for flat elements. */
size_t meg_optim_nbytes(const struct meg_optim_conf *c, int64_t flat);

/* For the parameters and gradients of model, which must outlive it.  MEG_EFAIL when memory does not suffice. */
int meg_optim_create(struct meg_optim **out, const struct meg_optim_conf *c, const struct meg_gpt *model,
                     struct meg_err *e);
void meg_optim_close(struct meg_optim *o);

/*
 * Add up the gradients of all ranks that saw other tokens, so that copies of a parameter have equal ones.
 * The following are sums over the whole model, equal on every rank.
 */
void meg_optim_add_up(struct meg_optim *o);

/* sqrt(sum of squares) of scale times the gradients; not finite iff one of them is not. */
double meg_optim_grad_norm(struct meg_optim *o, double scale);
/* sqrt(sum of squares) of the weights. */
double meg_optim_params_norm(struct meg_optim *o);
/* Gradient elements that are exactly zero. */
int64_t meg_optim_num_zeros(struct meg_optim *o);
/*
 * The last parameter in the order of the table, which backward comes to first, whose gradient on this rank has an
 * element that is not finite; NULL: none.
 */
const struct meg_param *meg_optim_nonfinite(struct meg_optim *o);

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

MEG_END_DECLS
#endif
