/* ckpt_conf.c - options for saving and loading checkpoints during training. */
#include "run/ckpt_conf.h"
#include "option/check.h"

#define C struct meg_train_ckpt_conf
const struct meg_opt meg_train_ckpt_opts[] = {
    { "save", 0, MEG_STR(C, save), "DIR", NULL, "directory to save checkpoints in" },
    { "save-interval", 0, MEG_I64(C, save_interval), "N", NULL, "number of iterations between checkpoints" },
    MEG_ALIAS("persistent-save-interval", "save-interval"),
    { "keep-last-n", 0, MEG_I64(C, keep_last), "N", NULL,
      "after a save, remove older checkpoints so that N remain, including the new one; also keep the one from which "
      "the "
      "run resumed, and those of iterations later than the new one" },
    MEG_ALIAS("most-recent-k", "keep-last-n"),
    { "overwrite-checkpoints", 0, MEG_BOOL(C, overwrite), NULL, "no",
      "allow --save to a directory with checkpoints of another run; saving an iteration replaces that run's checkpoint "
      "of the iteration" },
    { "exit-on-save-failure", 0, MEG_BOOL(C, exit_on_save_failure), NULL, "no",
      "end the run when a checkpoint cannot be saved, instead of continuing and trying again at the next save" },
    { "load", 0, MEG_STR(C, load), "DIR", NULL,
      "start from the model in DIR: a checkpoint of meg-train or Megatron, or a Hugging Face model" },
    { "pretrained-checkpoint", 0, MEG_STR(C, pretrained), "DIR", NULL,
      "start from the weights in DIR, as --load DIR --finetune does, unless the --load directory contains a "
      "checkpoint" },
    { "ckpt-step", 0, MEG_I64(C, ckpt_step), "N", NULL, "iteration to load; default: the latest" },
    { "exit-on-missing-checkpoint", 0, MEG_BOOL(C, exit_on_missing), NULL, "no",
      "fail when the --load directory has no checkpoint, instead of training from scratch" },
    { "finetune", 0, MEG_BOOL(C, finetune), NULL, "no", "load only the weights, and start at iteration 0" },
    { "no-load-optim", 0, MEG_STORE_FALSE(C, load_optim), NULL, "no",
      "do not load the optimizer state or the learning-rate schedule" },
    { "no-load-rng", 0, MEG_STORE_FALSE(C, load_rng), NULL, "no",
      "use the value of --seed for dropout and stochastic rounding instead of the seed in the checkpoint" },
    { "async-save", 0, MEG_BOOL(C, async_save), NULL, "no",
      "save each checkpoint in the background, from a copy in memory, while training continues" },
    { "no-save-optim", 0, MEG_STORE_FALSE(C, save_optim), NULL, "no",
      "save without the optimizer state and the learning-rate schedule" },
    { "no-save-rng", 0, MEG_STORE_FALSE(C, save_rng), NULL, "no",
      "save without the seed of dropout and stochastic rounding" },
    { "use-checkpoint-args", 0, MEG_BOOL(C, use_checkpoint_args), NULL, "no",
      "take the model and tokenizer options, --seq-length and --decoder-seq-length from the checkpoint, except those "
      "given on the command line or in a --config file" },
    { "override-opt_param-scheduler", 0, MEG_BOOL(C, override_scheduler), NULL, "no",
      "use the learning-rate and weight-decay schedules of the command line if the checkpoint's differ" },
    { "use-checkpoint-opt_param-scheduler", 0, MEG_BOOL(C, use_checkpoint_scheduler), NULL, "no",
      "use the learning-rate and weight-decay schedules of the checkpoint if the command line's differ" },
    { 0 }
};

static const struct meg_opt_range ranges[] = {
    { "save-interval", offsetof(C, save_interval), 1, INT64_MAX },
    { "ckpt-step", offsetof(C, ckpt_step), 0, INT64_MAX },
    { "keep-last-n", offsetof(C, keep_last), 1, INT64_MAX },
    { 0 },
};
#undef C

int meg_train_ckpt_conf_check(const struct meg_train_ckpt_conf *c, struct meg_err *e)
{
    const struct meg_opt_rule rules[] = {
        { c->ckpt_step != MEG_UNSET && !c->load, "ckpt-step", ": requires --load DIR" },
        { c->use_checkpoint_args && !c->load && !c->pretrained, "use-checkpoint-args", ": requires --load DIR" },
        { c->finetune && !c->load && !c->pretrained, "finetune", ": requires --load DIR" },
        { c->override_scheduler && c->use_checkpoint_scheduler, "override-opt_param-scheduler",
          ": contradicts --use-checkpoint-opt_param-scheduler; use only one of them" },
        { 0 },
    };
    const int r = meg_opt_check_ranges(ranges, c, e);

    return r < 0 ? r : meg_opt_check_rules(rules, meg_train_ckpt_opts, c, e);
}
