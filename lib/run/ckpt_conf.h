/*
 * ckpt_conf.h - options for saving and loading checkpoints during training.
 */
#pragma once
#include "option/opt.h"

struct meg_train_ckpt_conf {
    const char *save, *load, *pretrained;
    int64_t save_interval, ckpt_step, keep_last;
    bool overwrite, exit_on_save_failure;
    bool exit_on_missing, finetune, load_optim, load_rng, save_optim, save_rng, async_save;
    bool use_checkpoint_args, override_scheduler, use_checkpoint_scheduler;
};
extern const struct meg_opt meg_train_ckpt_opts[];

/* Return MEG_EUSAGE if a value is out of range, or if an option requires or contradicts another one. */
int meg_train_ckpt_conf_check(const struct meg_train_ckpt_conf *c, struct meg_err *e);
