#include "base/err.h"
#include "base/opt.h"
#include "train/train.h"

int main(int argc, char **argv)
{
    static struct meg_train_job job;
    const struct meg_optgroup groups[] = { { "training", meg_train_opts, &job.train },
                                           { "optimizer", meg_optim_opts, &job.optim },
                                           { "network", meg_gpt_opts, &job.model },
                                           { "data", meg_data_opts, &job.data },
                                           { "tokenizer", meg_tok_opts, &job.tok },
                                           { "checkpoints", meg_train_ckpt_opts, &job.ckpt },
                                           { "logging", meg_train_log_opts, &job.log },
                                           { "accepted and ignored", meg_train_ignored_opts, NULL },
                                           { 0 } };
    struct meg_err e;

    meg_train_refuse_old_names(argc, argv);
    meg_opt_parse(groups, "[options]", "Train a GPT on a token dataset.", argc, argv);
    if (meg_train(&job, groups, &e) < 0)
        meg_die_err(&e);
    return meg_finish();
}
