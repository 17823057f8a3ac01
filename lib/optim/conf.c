/* conf.c - options of the optimizer and of the learning-rate schedule. */
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include "optim/optim.h"

#define C struct meg_optim_conf
const struct meg_opt meg_optim_opts[] = {
    { "optimizer", 0, MEG_ENUM(C, optimizer), meg_optimizer_choices, "adam", "optimizer: AdamW, or SGD with momentum" },
    { "lr", 0, MEG_F64(C, lr), "RATE", NULL, "maximum learning rate" },
    { "min-lr", 0, MEG_F64(C, min_lr), "RATE", "0", "minimum learning rate, reached at the end of the decay" },
    { "lr-decay-style", 0, MEG_ENUM(C, lr_decay_style), "constant|linear|cosine|inverse-square-root|WSD", "linear",
      "shape of the learning-rate decay after warm-up" },
    { "lr-decay-iters", 0, MEG_I64(C, lr_decay_iters), "N", NULL,
      "number of iterations, including warm-up, until the learning rate reaches --min-lr; default: all iterations" },
    { "lr-decay-samples", 0, MEG_I64(C, lr_decay_samples), "N", NULL,
      "number of samples, including warm-up, until the learning rate reaches --min-lr; requires --train-samples" },
    { "lr-warmup-iters", 0, MEG_I64(C, lr_warmup_iters), "N", "0",
      "number of iterations of linear warm-up from --lr-warmup-init to --lr" },
    { "lr-warmup-samples", 0, MEG_I64(C, lr_warmup_samples), "N", "0",
      "number of samples of linear warm-up; requires --train-samples" },
    { "lr-warmup-fraction", 0, MEG_F64(C, lr_warmup_fraction), "F", NULL,
      "length of warm-up as a fraction of --lr-decay-iters or --lr-decay-samples; at least 0 and less than 1" },
    { "lr-warmup-init", 0, MEG_F64(C, lr_warmup_init), "RATE", "0", "learning rate at the start of warm-up" },
    { "lr-wsd-decay-style", 0, MEG_ENUM(C, lr_wsd_decay_style), "linear|cosine|exponential", "exponential",
      "shape of the final decay with --lr-decay-style WSD" },
    { "lr-wsd-decay-iters", 0, MEG_I64(C, lr_wsd_decay_iters), "N", NULL,
      "number of iterations of the final decay with --lr-decay-style WSD" },
    { "lr-wsd-decay-samples", 0, MEG_I64(C, lr_wsd_decay_samples), "N", NULL,
      "number of samples of the final decay with --lr-decay-style WSD; requires --train-samples" },
    { "decoupled-lr", 0, MEG_F64(C, decoupled_lr), "RATE", NULL,
      "maximum learning rate of the word embedding and the output layer; default: --lr" },
    { "decoupled-min-lr", 0, MEG_F64(C, decoupled_min_lr), "RATE", NULL,
      "minimum learning rate of the word embedding and the output layer; requires --decoupled-lr; default: --min-lr" },
    { "weight-decay", 0, MEG_F64(C, weight_decay), "F", "0.01",
      "weight decay of all parameters except biases and norms" },
    { "weight-decay-incr-style", 0, MEG_ENUM(C, weight_decay_incr_style), "constant|linear|cosine", "constant",
      "schedule of the weight decay from --start-weight-decay to --end-weight-decay over the run" },
    { "start-weight-decay", 0, MEG_F64(C, start_weight_decay), "F", NULL,
      "weight decay at the first iteration; requires --weight-decay-incr-style linear or cosine" },
    { "end-weight-decay", 0, MEG_F64(C, end_weight_decay), "F", NULL,
      "weight decay at the last iteration; requires --weight-decay-incr-style linear or cosine" },
    { "clip-grad", 0, MEG_F64(C, clip_grad), "NORM", "1.0", "clip gradients to this global L2 norm; 0: do not clip" },
    { "adam-beta1", 0, MEG_F64(C, adam_beta1), "F", "0.9", "decay rate of AdamW's first moment" },
    { "adam-beta2", 0, MEG_F64(C, adam_beta2), "F", "0.999", "decay rate of AdamW's second moment" },
    { "adam-eps", 0, MEG_F64(C, adam_eps), "F", "1e-8", "epsilon added to the denominator of AdamW's update" },
    { "main-params-dtype", 0, MEG_ENUM(C, main_params_dtype), "fp32|bf16", "fp32",
      "dtype of the main parameters with --bf16; bf16: update the bf16 parameters in place, with stochastic rounding" },
    { "exp-avg-dtype", 0, MEG_ENUM(C, exp_avg_dtype), "fp32|bf16", "fp32",
      "dtype of AdamW's first moment; bf16 is rounded stochastically" },
    { "exp-avg-sq-dtype", 0, MEG_ENUM(C, exp_avg_sq_dtype), "fp32|bf16", "fp32",
      "dtype of AdamW's second moment; bf16 is rounded stochastically" },
    { "sgd-momentum", 0, MEG_F64(C, sgd_momentum), "F", "0.9", "momentum with --optimizer sgd" },
    { 0 }
};
#undef C

/* Return the field of option `name` in c, and set *row to the row of the option. */
static int *field_of(struct meg_optim_conf *c, const char *name, const struct meg_opt **row)
{
    for (*row = meg_optim_opts; strcmp((*row)->name, name) != 0;)
        ++*row;
    return (int *)(void *)((char *)c + (*row)->offset);
}

const char *meg_optim_choice(const char *option, int value)
{
    struct meg_optim_conf c = { 0 };
    const struct meg_opt *row;

    *field_of(&c, option, &row) = value;
    return meg_opt_choice(meg_optim_opts, option, &c);
}

bool meg_optim_parse_choice(const char *option, const char *word, int *value)
{
    struct meg_optim_conf c = { 0 };
    const struct meg_opt *row;
    const int *field = field_of(&c, option, &row);
    const bool is_known = meg_opt_set(row, &c, word, NULL) == 0;

    *value = *field;
    return is_known;
}

static int fail_option(struct meg_err *e, const char *option, double value, const char *rule)
{
    return meg_fail(e, MEG_EUSAGE, "%s %g: %s", option, value, rule);
}

static int check_rates(const struct meg_optim_conf *c, struct meg_err *e)
{
    const struct {
        const char *name;
        double v;
    } positive_or_0[] = {
        { "--lr", c->lr }, { "--min-lr", c->min_lr }, { "--lr-warmup-init", c->lr_warmup_init },
        { "--weight-decay", c->weight_decay }, { "--clip-grad", c->clip_grad }, { "--adam-eps", c->adam_eps },
    }, below_1[] = {
        { "--adam-beta1", c->adam_beta1 }, { "--adam-beta2", c->adam_beta2 }, { "--sgd-momentum", c->sgd_momentum },
    };

    if (isnan(c->lr))
        return meg_fail(e, MEG_EUSAGE, "--lr is required");
    for (size_t i = 0; i < sizeof positive_or_0 / sizeof *positive_or_0; i++)
        if (!(positive_or_0[i].v >= 0) || isinf(positive_or_0[i].v))
            return fail_option(e, positive_or_0[i].name, positive_or_0[i].v, "must be finite and 0 or more");
    for (size_t i = 0; i < sizeof below_1 / sizeof *below_1; i++)
        if (!(below_1[i].v >= 0 && below_1[i].v < 1))
            return fail_option(e, below_1[i].name, below_1[i].v, "must be at least 0 and less than 1");
    if (c->min_lr > c->lr)
        return fail_option(e, "--min-lr", c->min_lr, "must not be above --lr");
    if (c->lr_warmup_init > c->lr)
        return fail_option(e, "--lr-warmup-init", c->lr_warmup_init, "must not be above --lr");
    if (!isnan(c->decoupled_lr) && !(c->decoupled_lr >= 0))
        return fail_option(e, "--decoupled-lr", c->decoupled_lr, "must be 0 or more");
    if (!isnan(c->decoupled_min_lr)) {
        if (isnan(c->decoupled_lr))
            return fail_option(e, "--decoupled-min-lr", c->decoupled_min_lr, "requires --decoupled-lr");
        if (!(c->decoupled_min_lr >= 0))
            return fail_option(e, "--decoupled-min-lr", c->decoupled_min_lr, "must be 0 or more");
    }
    if (!isnan(c->decoupled_lr) && (isnan(c->decoupled_min_lr) ? c->min_lr : c->decoupled_min_lr) > c->decoupled_lr)
        return fail_option(e, "--decoupled-lr", c->decoupled_lr,
                           isnan(c->decoupled_min_lr) ? "must be at least --min-lr; use a lower --decoupled-min-lr"
                                                      : "must be at least --decoupled-min-lr");
    return 0;
}

/*
 * Check that v, if set, is at least `lowest`, and that v * unit is at most 2^53 samples, the limit of exact integers in
 * a double.  `unit` is the number of samples that v counts: 1, or the global batch size.
 */
static int check_count(const char *option, int64_t v, int64_t lowest, int64_t unit, struct meg_err *e)
{
    if (v != MEG_UNSET && (double)v * (double)unit > 0x1p53)
        return meg_fail(e, MEG_EUSAGE, "%s %" PRId64 ": must correspond to at most 2^53 samples", option, v);
    if (v != MEG_UNSET && v < lowest)
        return meg_fail(e, MEG_EUSAGE, "%s %" PRId64 ": must be at least %" PRId64, option, v, lowest);
    return 0;
}

/* Check the options in iterations and in samples.  Reject positive values in the unit that the run does not use. */
static int check_units(const struct meg_optim_conf *c, bool by_samples, int64_t global_batch, struct meg_err *e)
{
    const struct {
        const char *name;
        int64_t v, lowest;
    } iters[] = {
        { "--lr-decay-iters", c->lr_decay_iters, 1 }, { "--lr-warmup-iters", c->lr_warmup_iters, 0 },
        { "--lr-wsd-decay-iters", c->lr_wsd_decay_iters, 1 },
    }, samples[] = {
        { "--lr-decay-samples", c->lr_decay_samples, 1 }, { "--lr-warmup-samples", c->lr_warmup_samples, 0 },
        { "--lr-wsd-decay-samples", c->lr_wsd_decay_samples, 1 },
    };
    int r;

    for (int i = 0; i < 3; i++) {
        if ((r = check_count(iters[i].name, iters[i].v, iters[i].lowest, global_batch, e)) < 0 ||
            (r = check_count(samples[i].name, samples[i].v, samples[i].lowest, 1, e)) < 0)
            return r;
        if (by_samples && iters[i].v != MEG_UNSET && iters[i].v > 0)
            return meg_fail(e, MEG_EUSAGE, "%s %" PRId64 ": requires --train-iters; with --train-samples, use %s",
                            iters[i].name, iters[i].v, samples[i].name);
        if (!by_samples && samples[i].v != MEG_UNSET && samples[i].v > 0)
            return meg_fail(e, MEG_EUSAGE, "%s %" PRId64 ": requires --train-samples; with --train-iters, use %s",
                            samples[i].name, samples[i].v, iters[i].name);
    }
    return 0;
}

static int make_weight_decay(struct meg_lr_schedule *s, const struct meg_optim_conf *c, struct meg_err *e)
{
    s->wd_style = c->weight_decay_incr_style;
    s->start_wd = s->end_wd = c->weight_decay;
    if (s->wd_style == MEG_WD_CONSTANT) {
        if (!isnan(c->start_weight_decay) || !isnan(c->end_weight_decay))
            return fail_option(e, isnan(c->start_weight_decay) ? "--end-weight-decay" : "--start-weight-decay",
                               isnan(c->start_weight_decay) ? c->end_weight_decay : c->start_weight_decay,
                               "requires --weight-decay-incr-style linear or cosine");
        return 0;
    }
    s->start_wd = c->start_weight_decay;
    s->end_wd = c->end_weight_decay;
    if (!(s->start_wd >= 0 && s->end_wd >= s->start_wd))
        return meg_fail(e, MEG_EUSAGE,
                        "--weight-decay-incr-style %s: requires --start-weight-decay of 0 or more and "
                        "--end-weight-decay of at least --start-weight-decay",
                        meg_opt_choice(meg_optim_opts, "weight-decay-incr-style", c));
    return 0;
}

/* Return `samples` if it is set, else `iters` converted to samples if that is set, else dflt. */
static int64_t in_samples(int64_t samples, int64_t iters, int64_t global_batch, int64_t dflt)
{
    if (samples != MEG_UNSET)
        return samples;
    return iters != MEG_UNSET ? iters * global_batch : dflt;
}

static int make_rate(struct meg_lr_schedule *s, const struct meg_optim_conf *c, int64_t total, int64_t global_batch,
                     struct meg_err *e)
{
    const int64_t warmup = c->lr_warmup_iters * global_batch + c->lr_warmup_samples;

    s->style = c->lr_decay_style;
    s->wsd_style = c->lr_wsd_decay_style;
    s->init_lr = c->lr_warmup_init;
    s->max_lr = c->lr;
    s->min_lr = c->min_lr;
    s->decay = in_samples(c->lr_decay_samples, c->lr_decay_iters, global_batch, total);
    s->wsd_decay = in_samples(c->lr_wsd_decay_samples, c->lr_wsd_decay_iters, global_batch, 0);
    s->warmup = (double)warmup;
    if (!isnan(c->lr_warmup_fraction)) {
        /* in a run that trains, a fraction of 1 is refused below, because warm-up must end before the decay ends */
        if (!(c->lr_warmup_fraction >= 0 && c->lr_warmup_fraction <= 1))
            return fail_option(e, "--lr-warmup-fraction", c->lr_warmup_fraction, "must be at least 0 and less than 1");
        if (warmup)
            return fail_option(e, "--lr-warmup-fraction", c->lr_warmup_fraction,
                               "cannot be combined with --lr-warmup-iters or --lr-warmup-samples");
        s->warmup = c->lr_warmup_fraction * (double)s->decay;
    }
    if (total > 0 && s->warmup >= (double)s->decay)
        return meg_fail(
            e, MEG_EUSAGE,
            "learning rate: the warm-up has %g samples, but must be shorter than the decay, which has %" PRId64
            "; change the --lr-warmup-* or --lr-decay-* options",
            s->warmup, s->decay);
    if (s->style == MEG_LR_WSD && s->wsd_decay <= 0)
        return meg_fail(e, MEG_EUSAGE, "--lr-decay-style WSD: requires --lr-wsd-decay-iters or --lr-wsd-decay-samples");
    if (s->style == MEG_LR_WSD && s->wsd_decay > s->decay)
        return meg_fail(e, MEG_EUSAGE,
                        "--lr-decay-style WSD: the final decay of %" PRId64
                        " samples is longer than the complete schedule of %" PRId64
                        " samples; change the --lr-wsd-decay-* or --lr-decay-* options",
                        s->wsd_decay, s->decay);
    return 0;
}

int meg_lr_schedule_make(struct meg_lr_schedule *s, const struct meg_optim_conf *c, int64_t train_iters,
                         int64_t train_samples, int64_t global_batch, struct meg_err *e)
{
    int64_t total = train_samples != MEG_UNSET ? train_samples : train_iters * global_batch;
    int r;

    memset(s, 0, sizeof *s);
    s->wd_incr = total;
    if ((r = check_rates(c, e)) < 0 || (r = check_units(c, train_samples != MEG_UNSET, global_batch, e)) < 0 ||
        (r = make_weight_decay(s, c, e)) < 0)
        return r;
    return make_rate(s, c, total, global_batch, e);
}
