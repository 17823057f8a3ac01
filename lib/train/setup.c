#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "base/log.h"
#include "cpu/cpu.h"
#include "tokenizer/megatron_release.h"
#include "train/internal.h"
#include "train/rank_config_check.h"
#include "train/stop.h"

/* ---- rules, and what follows from the settings; nothing large is allocated ---- */

int64_t meg_train_world_size(const struct trainer *t)
{
    const int64_t planned = t->job->train.world_size;

    return planned != MEG_UNSET ? planned : t->mesh->world->size;
}

static int check_settings(struct trainer *t, struct meg_err *e)
{
    struct meg_train_job *job = t->job;
    const struct meg_train_conf *c = &job->train;
    int r;

    if (c->plan)
        meg_plan_reset_layout(job, meg_train_world_size(t));
    if ((r = meg_train_ckpt_conf_check(&job->ckpt, e)) < 0 || (r = meg_logging_conf_check(&job->log, e)) < 0 ||
        (r = meg_train_open_checkpoint(t, e)) < 0 ||
        (r = meg_precision_make(&t->precision, &t->scaler, &job->precision, e)) < 0 ||
        (r = meg_layout_make(&t->grid.layout, &job->layout, c->plan ? 1 : meg_train_world_size(t), e)) < 0 ||
        (r = meg_train_conf_check(c, t->grid.layout.dp, &t->plan, &t->iters, e)) < 0)
        return r;
    if (job->log.log_progress && !job->ckpt.save)
        return meg_fail(e, MEG_EUSAGE, "--log-progress: needs --save DIR");
    if (!strcmp(c->on_nan, "rollback") && (!job->ckpt.save || !job->ckpt.save_optim))
        return meg_fail(e, MEG_EUSAGE, "--on-nan rollback: needs --save DIR, and no --no-save-optim");
    if (strcmp(c->on_nan, "abort") && t->scaler.type == MEG_SCALER_DYNAMIC)
        return meg_fail(e, MEG_EUSAGE, "--on-nan %s: --fp16 without --loss-scale leaves such iterations out by itself",
                        c->on_nan);
    if (!c->skip_train &&
        (r = meg_lr_schedule_make(&t->schedule, &job->optim, t->iters, c->train_samples, t->plan.global, e)) < 0)
        return r;
    return 0;
}

/* Merges are of one type; as in Megatron's pretrain_gpt.py it need not be given then. */
static void assume_gpt2(struct meg_tok_conf *c)
{
    if (!c->type && c->vocab_file && c->merge_file)
        c->type = "GPT2BPETokenizer";
}

static int open_tokenizer(struct trainer *t, struct meg_err *e)
{
    int r;

    assume_gpt2(&t->job->tok);
    t->job->tok.megatron_release = meg_megatron_release_find(t->job->tok.megatron_release)->name; /* for checkpoints */
    if ((r = meg_tokenizer_open(&t->tok, &t->job->tok, e)) < 0 ||
        (r = meg_ckpt_tokenizer_read(&t->tok_files, &t->job->tok, t->tok, e)) < 0 ||
        (t->from && (r = meg_ckpt_tokenizer_inherit(&t->tok_files, t->from, e)) < 0))
        return r;
    t->job->model.vocab_size = meg_tokenizer_vocab_size(t->tok);
    if ((r = meg_gpt_conf_check(&t->job->model, e)) < 0)
        return r;
    if (t->job->model.max_position_embeddings < t->job->train.seq_length)
        return meg_fail(e, MEG_EUSAGE, "--max-position-embeddings %" PRId64 ": less than --seq-length %" PRId64,
                        t->job->model.max_position_embeddings, t->job->train.seq_length);
    return 0;
}

static bool is_zb(const struct meg_train_job *job)
{
    return job->layout.schedule && !strcmp(job->layout.schedule, "zb-h1");
}

/* The schedule has a list for every batch of the run, and what it needs is kept. */
static int check_schedule(const struct trainer *t, struct meg_err *e)
{
    const struct meg_batch_schedule *p = &t->plan;
    const int64_t step = p->rampup_samples ? p->increment : p->global;

    for (int64_t global = p->rampup_samples ? p->start : p->global; global <= p->global; global += step) {
        const struct meg_pipe_schedule_conf c =
            meg_train_pipeline_schedule(t->job, &t->grid.layout, global / (p->micro * p->dp_size));
        const int r = meg_pipe_schedule_check(&c, e);

        if (r < 0)
            return r;
    }
    if (is_zb(t->job) && meg_train_recompute(&t->job->train) != MEG_RECOMPUTE_NONE)
        return meg_fail(e, MEG_EUSAGE,
                        "--pipeline-schedule zb-h1: nothing can be recomputed (--recompute-activations, "
                        "--recompute-granularity), as activations wait for the gradients of weights");
    return 0;
}

/* What ranks send each other of a micro-batch at once, rows or keys and values, is counted by an int. */
static int check_messages(const struct meg_train_conf *c, const struct meg_gpt_conf *m, const struct meg_layout *l,
                          struct meg_err *e)
{
    const int64_t n = c->micro_batch_size * c->seq_length / l->cp;
    const int64_t rows = l->pp > 1 || l->has_sp ? n / (l->has_sp ? l->tp : 1) * m->hidden_size : 0;
    const int64_t keys = l->cp > 1 ? n * 2 * (m->num_query_groups / l->tp) * m->kv_channels : 0;

    if (rows <= INT32_MAX && keys <= INT32_MAX)
        return 0;
    return meg_fail(e, MEG_EUSAGE,
                    "--micro-batch-size %" PRId64 ": with --seq-length %" PRId64 " and --hidden-size %" PRId64
                    " ranks would send each other %" PRId64 " numbers at once; must be at most %d",
                    c->micro_batch_size, c->seq_length, m->hidden_size, rows > keys ? rows : keys, INT32_MAX);
}

int meg_train_fit_layout(struct trainer *t, struct meg_err *e)
{
    const struct meg_gpt_conf *m = &t->job->model;
    const struct meg_layout_model model = { .layers = m->num_layers,
                                            .s = t->job->train.seq_length,
                                            .heads = m->num_attention_heads,
                                            .groups = m->num_query_groups,
                                            .ffn = m->ffn_hidden_size,
                                            .vocab = m->vocab_size };

    const struct meg_layout *l = &t->grid.layout;
    int r;

    if ((r = meg_layout_set_model(&t->grid.layout, &t->job->layout, &model, e)) < 0 ||
        (r = meg_zero_fit(&t->grid.layout, &t->job->share, !m->is_untied, t->precision.params, e)) < 0 ||
        (r = meg_train_recompute_check(&t->job->train, l, e)) < 0)
        return r;
    if ((r = check_messages(&t->job->train, m, l, e)) < 0)
        return r;
    if (l->zero.stage == 3 && t->job->train.replica_interval != MEG_UNSET)
        return meg_fail(e, MEG_EUSAGE,
                        "--check-weight-hash-across-dp-replicas-interval %" PRId64
                        ": with --zero-stage 3 ranks have no copies to compare",
                        t->job->train.replica_interval);
    return t->job->train.skip_train ? 0 : check_schedule(t, e);
}

/* Check that the training split has data: --split may give it no share, its own paths may be missing. */
static int check_train_split(const struct trainer *t, struct meg_err *e)
{
    const char *split = t->job->data.split;
    int n;
    const struct meg_mid_dataset *p = meg_data_splits_mid_datasets(t->data, &n);

    if (t->need.wanted[MEG_SPLIT_TRAIN] == 0 || (n > 0 && p->split == MEG_SPLIT_TRAIN))
        return 0;
    if (split)
        return meg_fail(e, MEG_EUSAGE,
                        "--split %s: gives training no share; its first number must be above 0, unless --skip-train is "
                        "given",
                        split);
    return meg_fail(e, MEG_EUSAGE,
                    "no training data: give --train-data-path, or the training group of the option that is used, or "
                    "--skip-train to evaluate only");
}

/* How many samples of which kind the run wants, and the files they come from. */
static int plan_data(struct trainer *t, struct meg_err *e)
{
    const struct meg_train_conf *c = &t->job->train;
    struct meg_dataset_spec *n = &t->need;
    int r = meg_data_conf_check(&t->job->data, meg_megatron_release_find(t->job->tok.megatron_release), e);

    if (r < 0)
        return r;
    n->seq_length = c->seq_length;
    n->seed = c->seed;
    n->eod = meg_tokenizer_eod(t->tok);
    n->pad = meg_tokenizer_special_ids(t->tok)->pad;
    n->vocab_size = t->job->model.vocab_size;
    n->tokenizer = meg_tokenizer_description(t->tok);
    n->megatron_release = t->job->tok.megatron_release;
    meg_sample_counts(n->wanted, c->train_samples == MEG_UNSET ? -1 : c->train_samples, t->iters, c->eval_interval,
                      c->eval_iters, t->plan.global);
    if (c->skip_train)
        n->wanted[MEG_SPLIT_TRAIN] = 0;
    if ((r = meg_gpt_data_plan(&t->data, &t->job->data, n, e)) < 0)
        return r;
    return check_train_split(t, e);
}

/* ---- what a run needs ---- */

static int open_model(struct trainer *t, struct meg_err *e)
{
    const struct meg_train_conf *c = &t->job->train;
    const struct meg_cost_model paper = meg_plan_cost_model(t, meg_batch_max_microbatches(&t->plan));
    const struct meg_gpt_run run = meg_cost_stage_run(&paper, t->mesh->at.pp);
    int r;

    if ((r = meg_gpt_create(&t->model, &t->job->model, &run, meg_cpu_ops(), t->mesh, e)) < 0 || c->skip_train)
        return r;
    return meg_optim_create(&t->optim, &t->job->optim, &t->job->share, t->model, e);
}

int meg_train_open_loader(struct trainer *t, struct meg_data_loader **out, int split, int64_t consumed,
                          struct meg_err *e)
{
    const struct meg_dataset *ds = meg_data_splits_dataset(t->data, split);
    const struct meg_layout *layout = &t->mesh->layout;
    struct meg_data_loader_conf c = { .read_ahead = 1 };
    int64_t *position;
    int r;

    *out = NULL;
    if (!ds)
        return 0;
    c.sampler.kind = meg_data_conf_sampler_type(&t->job->data);
    c.sampler.consumed = consumed;
    c.sampler.micro_batch = t->plan.micro;
    c.sampler.rank = (int)t->mesh->at.dp;
    c.sampler.ranks = t->plan.dp_size;
    c.s = meg_dataset_seq_length(ds) / layout->cp;
    position = meg_realloc_array(NULL, (size_t)c.s, sizeof *position);
    for (int64_t i = 0; i < c.s; i++)
        position[i] = meg_layout_position(layout, t->mesh->at.cp, meg_dataset_seq_length(ds), i);
    c.position = position;
    r = meg_data_loader_open(out, ds, &c, e);
    free(position);
    return r;
}

/* A message for each line of what meg_opt_dump gave. */
static void debug_options(const char *text)
{
    for (size_t n; *text; text += n + (text[n] == '\n')) {
        n = strcspn(text, "\n");
        if (*text != '#')
            meg_debug("option: %.*s", (int)n, text);
    }
}

static int open_report(struct trainer *t, struct meg_err *e)
{
    struct meg_str text = { 0 };
    int r;

    if (!meg_train_is_rank0(t))
        return 0;
    meg_opt_dump(t->groups, &text);
    debug_options(text.s);
    r = meg_logger_open(&t->report, &t->job->log, t->at.iteration, text.s, e);
    meg_str_free(&text);
    return r;
}

/* Rank 0 builds the index arrays and keeps them in the cache, where the others find them. */
static int build_data(struct trainer *t, struct meg_err *e)
{
    int r = 0;

    if (meg_train_is_rank0(t) && (r = meg_data_splits_build(t->data, e)) < 0)
        return r;
    meg_barrier(t->mesh->world);
    return meg_train_is_rank0(t) ? 0 : meg_data_splits_build(t->data, e);
}

static int run(struct trainer *t, struct meg_err *e)
{
    const struct meg_train_conf *c = &t->job->train;
    const double start_nbytes = meg_memory_rss();
    struct meg_usage_vs_plan account;
    int r;

    if (t->job->ckpt.save && !c->skip_train)
        meg_stop_catch(); /* before what takes long: a request is then met after one step */
    if ((r = open_model(t, e)) < 0 || (r = meg_train_load(t, e)) < 0 || (r = build_data(t, e)) < 0)
        return r;
    if (!c->skip_train && t->at.iteration < t->iters &&
        (r = meg_train_open_loader(t, &t->train, MEG_SPLIT_TRAIN, t->at.consumed_train, e)) < 0)
        return r;
    if ((r = meg_train_open_loader(t, &t->valid, MEG_SPLIT_VALID, c->skip_train ? 0 : t->at.consumed_valid, e)) < 0 ||
        (r = open_report(t, e)) < 0 || (meg_train_is_rank0(t) && (r = meg_train_progress_log_start(t, e)) < 0))
        return r;
    if ((r = meg_train_loop(t, e)) == 0) {
        meg_usage_vs_plan_measure(t, &account);
        meg_usage_vs_plan_log(t, &account, start_nbytes);
        if (t->job->account)
            *t->job->account = account;
    }
    return r;
}

static int settle(struct trainer *t, struct meg_err *e)
{
    int r;

    if ((r = check_settings(t, e)) < 0 || (r = open_tokenizer(t, e)) < 0 || (r = meg_train_fit_layout(t, e)) < 0 ||
        (r = meg_train_read_state(t, e)) < 0 || (r = meg_train_check_save_dir(t, e)) < 0)
        return r;
    return t->job->train.plan ? 0 : plan_data(t, e);
}

/* Rank 0 locks --save before anything of it is read, so that two jobs started on one folder do not meet there. */
static int lock_save(struct trainer *t, struct meg_err *e)
{
    const struct meg_train_conf *c = &t->job->train;

    if (!t->job->ckpt.save || c->skip_train || c->dry_run || c->plan)
        return 0;
    return meg_train_agree_or_exit(t, meg_train_is_rank0(t) ? meg_lock_dir(&t->lock, t->job->ckpt.save, e) : 0);
}

int meg_train(struct meg_train_job *job, const struct meg_optgroup *groups, struct meg_comm *world, struct meg_err *e)
{
    struct trainer t = { .job = job,
                         .mesh = &t.grid,
                         .grid = { .world = world },
                         .groups = groups,
                         .saved = -1,
                         .committed = -1,
                         .loaded = -1,
                         .start_s = meg_now_s() };
    int r;

    if ((r = meg_rank_config_check_options(world, groups, e)) < 0 || (r = lock_save(&t, e)) < 0 ||
        (r = meg_train_agree_or_exit(&t, settle(&t, e))) < 0 || (r = meg_train_check_inputs(&t, e)) < 0)
        goto out;
    if (job->train.dry_run || job->train.plan) {
        if (meg_train_is_rank0(&t) && job->train.plan)
            r = meg_plan_print_layouts(&t, stdout, e);
        else if (meg_train_is_rank0(&t))
            meg_plan_print_dry_run(&t, stdout);
        goto out;
    }
    if ((r = meg_train_agree_or_exit(&t, meg_memory_check(&t, e))) < 0)
        goto out;
    meg_mesh_make(&t.grid, world, &t.grid.layout);
    r = run(&t, e);
    if (r < 0 && r != MEG_ESTOP && world->size > 1)
        return r; /* to be told at once: to close what other ranks have a part in would wait for them */
out:
    meg_logger_close(t.report);
    meg_data_loader_close(t.train);
    meg_data_loader_close(t.valid);
    meg_optim_close(t.optim);
    meg_train_pipeline_free(&t.walk);
    meg_train_batches_free(&t.batches);
    meg_gpt_close(t.model);
    meg_data_splits_close(t.data);
    meg_ckpt_close(t.from);
    meg_ckpt_tokenizer_free(&t.tok_files);
    meg_tokenizer_close(t.tok);
    meg_mesh_close(&t.grid);
    meg_lock_release(&t.lock);
    return r;
}
