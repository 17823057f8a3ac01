/* train.c - a run from its options to its end: check and plan, set up, train, release the memory. */
#include "train/train.h"
#include <stdio.h>
#include "base/clock.h"
#include "placement/placement.h"
#include "plan/dry_run.h"
#include "plan/layout_search.h"
#include "plan/memory_check.h"
#include "train/rank_config_check.h"
#include "train/stop.h"
#include "train/trainer.h"

static int open_model(struct meg_trainer *t, struct meg_err *e)
{
    const struct meg_model_run run = meg_run_spec_stage(&t->spec.model_run, &t->spec.schedule, t->mesh.coords.pp);
    int r = meg_model_create(&t->model, &t->job->model, &run, t->device, &t->mesh, e);

    if (r < 0 || t->job->train.skip_train)
        return r;
    return meg_optim_create(&t->optim, &t->job->optim, &t->job->zero, t->model, e);
}

static int open_logger(struct meg_trainer *t, struct meg_err *e)
{
    struct meg_str options = { 0 };
    int r;

    if (!meg_train_is_rank0(t)) {
        meg_train_print_parameters(t);
        return 0;
    }
    meg_opt_dump(t->groups, &options);
    meg_train_print_arguments(t, options.s);
    meg_train_print_parameters(t);
    r = meg_logger_open(&t->logger, &t->job->log, t->state.iteration, options.s, e);
    meg_str_free(&options);
    return r < 0 ? r : meg_train_progress_log_start(t, e);
}

static int run(struct meg_trainer *t, struct meg_err *e)
{
    const double start_nbytes = meg_memory_rss();
    int r;

    if (t->job->ckpt.save && !t->job->train.skip_train)
        /* catch signals before the slow set-up; one that arrives during set-up stops the run after one step */
        meg_stop_catch();
    t->sequence_flops = meg_cost_model_flops(&t->job->model, t->spec.model_run.s, t->spec.model_run.s_enc);
    if ((r = open_model(t, e)) < 0 || (r = meg_train_load(t, e)) < 0 || (r = meg_train_build_data(t, e)) < 0 ||
        (r = meg_train_open_loaders(t, e)) < 0 || (r = open_logger(t, e)) < 0 || (r = meg_train_loop(t, e)) < 0)
        return r;
    meg_train_compare_usage(t, start_nbytes);
    return r;
}

/*
 * Lock the --save directory on rank 0 before the directory is read, so that only one job at a time saves there.  Runs
 * that save nothing (--skip-train, --dry-run, --plan) do not lock it.
 */
static int lock_save_dir(struct meg_trainer *t, struct meg_err *e)
{
    const struct meg_train_conf *c = &t->job->train;

    if (!t->job->ckpt.save || c->skip_train || c->dry_run || c->plan)
        return 0;
    return meg_train_agree_or_exit(t, meg_train_is_rank0(t) ? meg_lock_dir(&t->lock, t->job->ckpt.save, e) : 0);
}

/* Print the report of --dry-run or --plan on rank 0. */
static int print_estimate(const struct meg_trainer *t, struct meg_err *e)
{
    if (!meg_train_is_rank0(t))
        return 0;
    if (t->job->train.plan)
        return meg_plan_print_layouts(&t->spec, meg_train_planned_ranks(t), stdout, e);
    meg_plan_print_dry_run(&t->spec, t->data, stdout);
    return 0;
}

int meg_train(struct meg_train_job *job, const struct meg_optgroup *groups, struct meg_comm *world, struct meg_err *e)
{
    struct meg_trainer t = { .job = job,
                             .groups = groups,
                             .mesh = { .world = world },
                             .last_saved = -1,
                             .last_committed = -1,
                             .loaded_iteration = -1,
                             .start_s = meg_now_s() };
    int r;

    if ((r = meg_rank_config_check_options(world, groups, e)) < 0 || (r = lock_save_dir(&t, e)) < 0 ||
        (r = meg_train_agree_or_exit(&t, meg_train_check_and_plan(&t, e))) < 0 ||
        (r = meg_train_check_inputs(&t, e)) < 0)
        goto out;
    if (job->train.dry_run || job->train.plan) {
        r = print_estimate(&t, e);
        goto out;
    }
    if ((r = meg_train_agree_or_exit(&t, meg_comm_open_tensors(world, t.device, e))) < 0 ||
        (r = meg_train_agree_or_exit(&t, meg_memory_check(&t.spec, world, e))) < 0)
        goto out;
    meg_mesh_make(&t.mesh, world, &t.spec.layout);
    t.mesh.registers_buffers = job->zero.nccl_ub;
    meg_placement_begin(&t.device, &t.mesh);
    r = run(&t, e);
    if (r < 0 && r != MEG_ESTOP && world->size > 1)
        return r; /* no cleanup: its collective calls would wait for the other ranks */
out:
    meg_logger_close(t.logger);
    meg_data_loader_close(t.train);
    meg_train_close_eval(&t.valid);
    meg_optim_close(t.optim);
    meg_train_pipeline_free(&t);
    meg_train_batches_free(&t.batches, t.device);
    meg_train_batches_free(&t.previous_batches, t.device);
    meg_model_close(t.model);
    meg_data_splits_close(t.data);
    meg_masked_vocab_free(&t.masked_vocab);
    meg_ckpt_close(t.checkpoint);
    meg_ckpt_tokenizer_free(&t.tok_files);
    meg_tokenizer_close(t.tokenizer);
    meg_placement_end();
    meg_mesh_close(&t.mesh);
    meg_layout_free(&t.spec.layout);
    meg_lock_release(&t.lock);
    return r;
}
