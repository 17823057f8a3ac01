/* job.h - all options of a training run, and the option groups of meg-train. */
#pragma once
#include "data/blend/data_conf.h"
#include "device/device.h"
#include "logging/log_conf.h"
#include "model/conf.h"
#include "optim/optim.h"
#include "option/opt.h"
#include "run/ckpt_conf.h"
#include "run/precision.h"
#include "run/train_conf.h"
#include "tokenizer/tokenizer.h"

struct meg_usage_vs_plan;

struct meg_train_job {
    struct meg_train_conf train;
    struct meg_device_conf device;
    struct meg_layout_conf layout;
    struct meg_train_ckpt_conf ckpt;
    struct meg_logging_conf log;
    struct meg_optim_conf optim;
    struct meg_zero_conf zero;
    struct meg_precision_conf precision;
    struct meg_model_conf model;
    struct meg_data_conf data;
    struct meg_tok_conf tok;
    struct meg_usage_vs_plan *usage; /* struct that each rank fills at the end of the run; NULL: none */
};

/* Set `out` to the option groups of meg-train.  Their tables fill the fields of *job.  The last group is { 0 }. */
enum { MEG_TRAIN_OPTION_GROUPS = 13 };
void meg_train_option_groups(struct meg_optgroup out[MEG_TRAIN_OPTION_GROUPS], struct meg_train_job *job);

/*
 * Set the fields of *job that the user has not given from the file job->train.deepspeed_config, if it is not NULL:
 * train_micro_batch_size_per_gpu, train_batch_size, gradient_clipping, zero_optimization.stage, and those of fp16 and
 * bf16.  Other settings, and values "auto", are skipped.  Returns MEG_EUSAGE if a given field differs from the file,
 * MEG_EFORMAT if a setting has another type, and the errors of meg_json_load.
 */
int meg_train_read_deepspeed_config(struct meg_train_job *job, struct meg_err *e);

/*
 * Options of Megatron-LM, of BigScience's and of Microsoft's Megatron-DeepSpeed: those that have another name here,
 * those that have no effect, and those that meg-train does not support.
 */
extern const struct meg_opt meg_train_old_opts[];
extern const struct meg_opt_names meg_train_ignored[], meg_train_unsupported[];
