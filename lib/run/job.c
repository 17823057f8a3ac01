/* job.c - all options of a training run, and the option groups of meg-train. */
#include "run/job.h"
#include <string.h>

void meg_train_option_groups(struct meg_optgroup out[MEG_TRAIN_OPTION_GROUPS], struct meg_train_job *job)
{
    /*
     * Do not change a title: the output of --dump-config and the files of checkpoints contain the titles as comment
     * lines, and their bytes would change.
     */
    const struct meg_optgroup groups[MEG_TRAIN_OPTION_GROUPS] = {
        { "training", meg_train_opts, &job->train },
        { "device", meg_device_opts, &job->device },
        { "parallelism", meg_layout_opts, &job->layout },
        { "optimizer", meg_optim_opts, &job->optim },
        { "distributed optimizer", meg_zero_opts, &job->zero },
        { "precision", meg_precision_opts, &job->precision },
        { "network", meg_model_opts, &job->model },
        { "data", meg_data_opts, &job->data },
        { "tokenizer", meg_tok_opts, &job->tok },
        { "checkpoints", meg_train_ckpt_opts, &job->ckpt },
        { "logging", meg_logging_opts, &job->log },
        { "old names", meg_train_old_opts, NULL },
        { 0 },
    };

    memcpy(out, groups, sizeof groups);
}
