/* Settings of a training run: how much, how long, what is saved and what is said. */
#ifndef MEG_TRAIN_CONF_H
#define MEG_TRAIN_CONF_H
#include "model/gpt.h"
#include "optim/batch.h"
#include "option/opt.h"

MEG_BEGIN_DECLS

struct meg_train_conf {
    int64_t micro_batch_size, global_batch_size;
    struct meg_str_list rampup_batch_size; /* three numbers */
    bool decrease_batch_size_if_needed;
    int64_t seq_length;
    int64_t train_iters, train_samples; /* exactly one is given */
    int64_t exit_interval;
    double exit_duration_min;
    int64_t eval_iters, eval_interval;
    bool skip_train;
    int64_t seed;
    double timeout_min; /* of a wait for other ranks */
    bool recompute_activations, distribute_saved;
    const char *recompute_granularity, *recompute_method;
    int64_t recompute_layers;
    const char *on_nan;
    int64_t replica_interval;
    bool calculate_per_token_loss, check_for_nan, check_for_spiky_loss;
    bool dry_run, plan;   /* only on paper: this run, or layouts for it */
    int64_t world_size;   /* of it; unset: that of the run */
    const char *hardware; /* its times are those of */
};
extern const struct meg_opt meg_train_opts[];

struct meg_train_ckpt_conf {
    const char *save, *load;
    int64_t save_interval, ckpt_step, keep_last;
    bool overwrite, exit_on_save_failure;
    bool exit_on_missing, finetune, load_optim, load_rng, save_optim, save_rng, async_save;
    bool use_checkpoint_args, override_scheduler, use_checkpoint_scheduler;
};
extern const struct meg_opt meg_train_ckpt_opts[];

/* Names of Megatron that have no meaning here. */
extern const struct meg_opt meg_train_ignored_opts[];

/* Names that Megatron has, or had, and meg-train does not, and what to do about each. */
extern const struct meg_opt_unsupported meg_train_unsupported_opts[];

/*
 * Refuse what breaks a rule (MEG_EUSAGE, one line: option, value, rule).  The first also gives what
 * follows for a number of data-parallel ranks: the batches, and how many iterations there are.
 */
int meg_train_conf_check(const struct meg_train_conf *c, int64_t ranks, struct meg_batch_schedule *plan, int64_t *iters,
                         struct meg_err *e);
/* What is recomputed, by settings that pass this check; layers are shared as l says. */
int meg_train_recompute_check(const struct meg_train_conf *c, const struct meg_layout *l, struct meg_err *e);
enum meg_recompute meg_train_recompute(const struct meg_train_conf *c);
int meg_train_ckpt_conf_check(const struct meg_train_ckpt_conf *c, struct meg_err *e);

MEG_END_DECLS
#endif
