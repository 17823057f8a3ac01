/* meg-train: train, evaluate and save a model. */
#include "base/err.h"
#include "base/log.h"
#include "ckpt/ckpt.h"
#include "comm/comm.h"
#include "option/opt.h"
#include "train/train.h"

int main(int argc, char **argv)
{
    static struct meg_train_job job;
    struct meg_optgroup groups[MEG_TRAIN_OPTION_GROUPS];
    struct meg_comm_world ranks;
    struct meg_err e;
    double timeout_s;
    int r, rank;

    if (meg_comm_open(&ranks, &e) < 0)
        meg_die_err(&e);
    rank = ranks.world->rank;
    meg_log_set_rank(rank);
    meg_opt_set_ignored(meg_train_ignored);
    meg_opt_set_unsupported(meg_train_unsupported);
    meg_opt_set_presets("model-preset", meg_ckpt_preset_options);
    meg_train_option_groups(groups, &job);
    meg_opt_parse(groups, "[options]", "Train a GPT, BERT or T5 on a token dataset.", argc, argv);
    if (job.train.list_presets) {
        if (rank == 0 && meg_ckpt_print_presets(stdout, &e) < 0)
            meg_die_err(&e);
        meg_comm_close(ranks.world);
        return meg_close_stdout();
    }
    if (meg_train_read_deepspeed_config(&job, &e) < 0) {
        meg_log_rank0_first();
        if (e.code == MEG_EUSAGE)
            meg_usage_err(&e);
        meg_die_err(&e);
    }
    timeout_s = job.train.timeout_min > 0 ? job.train.timeout_min * 60 : 60; /* meg_train rejects an invalid value */
    meg_comm_set_timeout(ranks.world, timeout_s);
    meg_comm_watchdog_open(&ranks, timeout_s);
    if (ranks.world->size > 1)
        meg_info("%d ranks, started by %s", ranks.world->size, ranks.launcher);

    r = meg_train(&job, groups, ranks.world, &e);
    if (r < 0 && r != MEG_ESTOP)
        meg_die_err(&e); /* ends all ranks */
    meg_comm_watchdog_close(&ranks);
    meg_comm_close(ranks.world);
    if (r == MEG_ESTOP && rank == 0)
        meg_die_err(&e);
    return r < 0 ? meg_exit_status(r) : meg_close_stdout();
}
