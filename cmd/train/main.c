#include "base/err.h"
#include "base/log.h"
#include "base/opt.h"
#include "comm/board.h"
#include "train/train.h"

int main(int argc, char **argv)
{
    static struct meg_train_job job;
    const struct meg_optgroup groups[] = { { "training", meg_train_opts, &job.train },
                                           { "parallelism", meg_layout_opts, &job.layout },
                                           { "optimizer", meg_optim_opts, &job.optim },
                                           { "sharing of work", meg_share_opts, &job.share },
                                           { "precision", meg_precision_opts, &job.precision },
                                           { "network", meg_gpt_opts, &job.model },
                                           { "data", meg_data_opts, &job.data },
                                           { "tokenizer", meg_tok_opts, &job.tok },
                                           { "checkpoints", meg_train_ckpt_opts, &job.ckpt },
                                           { "logging", meg_train_log_opts, &job.log },
                                           { "accepted and ignored", meg_train_ignored_opts, NULL },
                                           { 0 } };
    struct meg_comm_world ranks;
    struct meg_err e;
    int r, rank;

    if (meg_comm_open(&ranks, &e) < 0)
        meg_die_err(&e);
    rank = ranks.world->rank;
    meg_log_set_rank(rank);
    meg_train_refuse_old_names(argc, argv);
    meg_opt_parse(groups, "[options]", "Train a GPT on a token dataset.", argc, argv);
    meg_comm_set_deadline(ranks.world, job.train.timeout_min * 60);
    meg_board_open(ranks.world, job.train.timeout_min * 60);
    if (ranks.world->size > 1)
        meg_note("%d ranks, started by %s", ranks.world->size, ranks.launcher);

    r = meg_train(&job, groups, ranks.world, &e);
    if (r < 0 && r != MEG_ESTOP)
        meg_die_err(&e);             /* ends the other ranks, too */
    meg_board_close();
    meg_comm_close(ranks.world);
    if (r == MEG_ESTOP && rank == 0)
        meg_die_err(&e);
    return r < 0 ? meg_exit_status(r) : meg_finish();
}
