/* Set up a run: check the options, plan the data, allocate model and optimizer.  Release the memory at the end. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "base/log.h"
#include "data/masked/bert_t5_dataset.h"
#include "option/check.h"
#include "plan/dry_run.h"
#include "plan/layout_search.h"
#include "plan/memory_check.h"
#include "plan/usage_vs_plan.h"
#include "tokenizer/megatron_release.h"
#include "train/rank_config_check.h"
#include "train/stop.h"
#include "train/train.h"
#include "train/trainer.h"
#include "watchdog/watchdog.h"

/* ---- checks of options, before large allocations ---- */

/* Return the number of ranks to plan for: --world-size, or else the ranks of this run. */
static int64_t world_size(const struct meg_trainer *t)
{
    const int64_t planned = t->job->train.world_size;

    return planned != MEG_UNSET ? planned : t->mesh.world->size;
}

/* Check the rules that span several groups of options. */
static int check_groups(const struct meg_trainer *t, struct meg_err *e)
{
    const struct meg_train_job *job = t->job;
    const enum meg_on_nan on_nan = job->train.on_nan;
    const struct meg_opt_rule log_rules[] = {
        { job->log.log_progress && !job->ckpt.save, "log-progress", ": requires --save DIR" },
        { 0 },
    };
    const struct meg_opt_rule rules[] = {
        { on_nan == MEG_ON_NAN_ROLLBACK && !job->ckpt.save, "on-nan", ": requires --save DIR" },
        { on_nan == MEG_ON_NAN_ROLLBACK && !job->ckpt.save_optim, "on-nan",
          ": cannot be combined with --no-save-optim" },
        { on_nan != MEG_ON_NAN_ABORT && t->spec.scaler.type == MEG_SCALER_DYNAMIC, "on-nan",
          ": cannot be combined with the dynamic loss scale of --fp16, which already skips such iterations; set a "
          "constant --loss-scale" },
        { 0 },
    };
    const int r = meg_opt_check_rules(log_rules, meg_logging_opts, &job->log, e);

    return r < 0 ? r : meg_opt_check_rules(rules, meg_train_opts, &job->train, e);
}

static int check_options(struct meg_trainer *t, struct meg_err *e)
{
    struct meg_train_job *job = t->job;
    const struct meg_train_conf *c = &job->train;
    int r;

    if (c->plan)
        meg_plan_reset_layout(job, world_size(t));
    if ((r = meg_train_ckpt_conf_check(&job->ckpt, e)) < 0 || (r = meg_logging_conf_check(&job->log, e)) < 0 ||
        (r = meg_train_open_checkpoint(t, e)) < 0 ||
        (r = meg_run_spec_make(&t->spec, job, c->plan ? 1 : world_size(t), e)) < 0 || (r = check_groups(t, e)) < 0)
        return r;
    if (meg_train_is_rank0(t))
        meg_train_recompute_warn(c);
    t->scaler = t->spec.scaler;
    return c->skip_train ? 0
                         : meg_lr_schedule_make(&t->lr_schedule, &job->optim, t->spec.train_iters, c->train_samples,
                                                t->spec.batch.global, e);
}

/*
 * Use the tokenizer type of Megatron's pretrain_gpt.py, pretrain_bert.py and pretrain_t5.py if --vocab-file is given
 * without a type.
 */
static void set_default_tokenizer_type(struct meg_tok_conf *c, const struct meg_model_conf *model)
{
    if (!c->type && c->vocab_file && !c->name_or_path && !c->tokenizer_model)
        c->type = meg_family_of(model)->samples == MEG_SAMPLES_GPT ? "GPT2BPETokenizer" : "BertWordPieceLowerCase";
}

/*
 * Set the vocabulary size: that of the tokenizer or, if a checkpoint is loaded, that of the checkpoint, which may have
 * other rows than the tokenizer has tokens.
 */
static int set_vocab_size(struct meg_trainer *t, struct meg_err *e)
{
    const int64_t tokens = t->spec.num_tokens = meg_tokenizer_vocab_size(t->tokenizer);
    int64_t *rows = &t->job->model.vocab_size;

    *rows = t->checkpoint ? meg_ckpt_run_vocab_size(t->checkpoint, tokens) : tokens;
    if (*rows != tokens)
        meg_info("the model has the vocabulary size of the checkpoint, %" PRId64 "; the tokenizer has %" PRId64
                 " tokens",
                 *rows, tokens);
    return t->checkpoint ? meg_ckpt_check_tokenizer(t->checkpoint, t->tokenizer, *rows, t->has_ckpt_tokenizer, e) : 0;
}

static int open_tokenizer(struct meg_trainer *t, struct meg_err *e)
{
    struct meg_train_job *job = t->job;
    int r;

    set_default_tokenizer_type(&job->tok, &job->model);
    /* the canonical name, which checkpoints store */
    job->tok.megatron_release = meg_megatron_release_find(job->tok.megatron_release)->name;
    if ((r = meg_tokenizer_open(&t->tokenizer, &job->tok, e)) < 0 ||
        (r = meg_ckpt_tokenizer_read(&t->tok_files, &job->tok, t->tokenizer, e)) < 0 ||
        (t->checkpoint && (r = meg_ckpt_tokenizer_inherit(&t->tok_files, t->checkpoint, e)) < 0))
        return r;
    if ((r = set_vocab_size(t, e)) < 0 || (r = meg_model_conf_check(&job->model, e)) < 0)
        return r;
    if (job->model.max_position_embeddings < job->train.seq_length)
        return meg_fail(e, MEG_EUSAGE, "--max-position-embeddings %" PRId64 ": must be at least --seq-length %" PRId64,
                        job->model.max_position_embeddings, job->train.seq_length);
    if (job->train.decoder_seq_length != MEG_UNSET &&
        job->model.max_position_embeddings < job->train.decoder_seq_length)
        return meg_fail(e, MEG_EUSAGE,
                        "--max-position-embeddings %" PRId64 ": must be at least --decoder-seq-length %" PRId64,
                        job->model.max_position_embeddings, job->train.decoder_seq_length);
    return 0;
}

/*
 * Return MEG_EUSAGE if the run trains but has no training data: the training part of --split is 0, or the training
 * paths are missing.
 */
static int check_train_split(const struct meg_trainer *t, struct meg_err *e)
{
    const char *split = t->job->data.split;
    int n;
    const struct meg_mid_dataset *p = meg_data_splits_mid_datasets(t->data, &n);

    if (t->dataset_spec.num_samples[MEG_SPLIT_TRAIN] == 0 || (n > 0 && p->split == MEG_SPLIT_TRAIN))
        return 0;
    if (split)
        return meg_fail(
            e, MEG_EUSAGE,
            "--split %s: leaves no documents for training; increase the first number, or use --skip-train to "
            "evaluate only",
            split);
    return meg_fail(
        e, MEG_EUSAGE,
        "no training data: specify the datasets of the training split, for example with --train-data-path, or "
        "use --skip-train to evaluate only");
}

/* Open the data of BERT or T5. */
static int plan_masked_data(struct meg_trainer *t, enum meg_masked_type type, struct meg_err *e)
{
    const struct meg_data_conf *c = &t->job->data;
    struct meg_masked_conf masked = meg_masked_defaults(type);

    masked.has_pairs = type == MEG_MASKED_BERT && t->job->model.bert_binary_head;
    masked.decoder_seq_length = t->spec.model_run.s_enc ? t->spec.model_run.s : 0;
    if (!isnan(c->mask_prob))
        masked.mask.prob = c->mask_prob;
    if (!isnan(c->short_seq_prob))
        masked.short_seq_prob = c->short_seq_prob;
    meg_masked_vocab_make(&t->masked_vocab, t->tokenizer, t->job->model.vocab_size);
    if (t->masked_vocab.bos < 0 && t->checkpoint)
        t->masked_vocab.bos = meg_ckpt_bos(t->checkpoint); /* decoder_start_token_id of a T5 of Hugging Face */
    return meg_masked_data_plan(&t->data, c, &t->dataset_spec, &masked, &t->masked_vocab, e);
}

/*
 * Open the data files.  Compute the number of samples of each split, and the sequences of each file that each split
 * reads.  build_data builds the index arrays later.
 */
static int plan_data(struct meg_trainer *t, struct meg_err *e)
{
    const struct meg_train_conf *c = &t->job->train;
    struct meg_dataset_spec *n = &t->dataset_spec;
    int r = meg_data_conf_check(&t->job->data, meg_megatron_release_find(t->job->tok.megatron_release), e);

    if (r < 0)
        return r;
    n->seq_length = c->seq_length;
    n->seed = c->seed;
    n->eod = meg_tokenizer_eod(t->tokenizer);
    n->pad = meg_tokenizer_special_ids(t->tokenizer)->pad;
    n->vocab_size = t->job->model.vocab_size;
    n->tokenizer = meg_tokenizer_description(t->tokenizer);
    n->megatron_release = t->job->tok.megatron_release;
    meg_sample_counts(n->num_samples, c->train_samples == MEG_UNSET ? -1 : c->train_samples, t->spec.train_iters,
                      c->eval_interval, c->eval_iters, t->spec.batch.global);
    if (c->skip_train)
        n->num_samples[MEG_SPLIT_TRAIN] = 0;
    switch (meg_family_of(&t->job->model)->samples) {
    case MEG_SAMPLES_GPT: r = meg_gpt_data_plan(&t->data, &t->job->data, n, e); break;
    case MEG_SAMPLES_BERT: r = plan_masked_data(t, MEG_MASKED_BERT, e); break;
    case MEG_SAMPLES_T5: r = plan_masked_data(t, MEG_MASKED_T5, e); break;
    }
    if (r < 0 || (r = check_train_split(t, e)) < 0)
        return r;
    if (meg_train_is_rank0(t))
        meg_train_report_epochs(t);
    return 0;
}

/*
 * Open checkpoint, device and tokenizer, check all options, and complete the run specification.  Unless --plan is
 * given, plan the data as well.
 */
static int check_and_plan(struct meg_trainer *t, struct meg_err *e)
{
    int r;

    if ((r = check_options(t, e)) < 0 || (r = meg_device_open(&t->device, &t->job->device, e)) < 0 ||
        (r = open_tokenizer(t, e)) < 0 || (r = meg_run_spec_fit_model(&t->spec, e)) < 0 ||
        (r = meg_train_read_state(t, e)) < 0 || (r = meg_train_check_save_dir(t, e)) < 0)
        return r;
    return t->job->train.plan ? 0 : plan_data(t, e);
}

/* ---- model, data, logs ---- */

static int open_model(struct meg_trainer *t, struct meg_err *e)
{
    const struct meg_model_run run = meg_run_spec_stage(&t->spec.model_run, &t->spec.schedule, t->mesh.coords.pp);
    int r = meg_model_create(&t->model, &t->job->model, &run, t->device, &t->mesh, e);

    if (r < 0 || t->job->train.skip_train)
        return r;
    return meg_optim_create(&t->optim, &t->job->optim, &t->job->zero, t->model, e);
}

static int open_loader(struct meg_trainer *t, struct meg_data_loader **out, const struct meg_dataset *ds,
                       int64_t consumed, struct meg_err *e)
{
    const struct meg_layout *layout = &t->mesh.layout;
    const struct meg_batch_memory pinned = { t->device->op->alloc_pinned, t->device->op->release_pinned };
    struct meg_data_loader_conf c = { .read_ahead = 1, .pinned = &pinned };
    int64_t *position;
    int r;

    c.sampler.type = meg_data_conf_sampler_type(&t->job->data);
    c.sampler.consumed = consumed;
    c.sampler.micro_batch = t->spec.batch.micro;
    c.sampler.rank = (int)t->mesh.coords.dp;
    c.sampler.ranks = t->spec.batch.dp_size;
    c.s = meg_dataset_seq_length(ds) / layout->cp;
    position = meg_realloc_array(NULL, (size_t)c.s, sizeof *position);
    for (int64_t i = 0; i < c.s; i++)
        position[i] = meg_layout_position(layout, t->mesh.coords.cp, meg_dataset_seq_length(ds), i);
    c.position = position;
    c.fields = meg_model_inputs(t->model);
    if (!t->job->data.reset_attention_mask)
        c.fields &= ~(1u << MEG_BATCH_DOC_START);
    r = meg_data_loader_open(out, ds, &c, e);
    free(position);
    return r;
}

int meg_train_open_eval(struct meg_trainer *t, struct meg_train_eval *out, int split, int64_t consumed,
                        struct meg_err *e)
{
    const struct meg_dataset *ds;
    const char *name;
    int r = 0;

    *out = (struct meg_train_eval){ 0 };
    while (r == 0 && (ds = meg_data_splits_group(t->data, split, out->n, &name))) {
        struct meg_train_eval_group *g;

        out->group = meg_realloc_array(out->group, (size_t)out->n + 1, sizeof *out->group);
        g = &out->group[out->n++];
        *g = (struct meg_train_eval_group){ .split = split, .name = name };
        r = open_loader(t, &g->loader, ds, consumed, e);
    }
    return r;
}

void meg_train_close_eval(struct meg_train_eval *v)
{
    for (int i = 0; i < v->n; i++)
        meg_data_loader_close(v->group[i].loader);
    free(v->group);
    *v = (struct meg_train_eval){ 0 };
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

/* Inform the watchdog that this rank loads or builds an index. */
static void begin_index(void *watchdog, const char *name)
{
    const char *slash = strrchr(name, '/');
    char task[256];

    snprintf(task, sizeof task, "loading or building the index of %s", slash ? slash + 1 : name);
    meg_watchdog_task_begin(watchdog, task);
}

static int build_indexes(struct meg_trainer *t, struct meg_err *e)
{
    struct meg_watchdog *watchdog = t->mesh.world->watchdog;
    const int r = meg_data_splits_build(t->data, begin_index, watchdog, e);

    meg_watchdog_task_end(watchdog);
    return r;
}

/*
 * Build the index arrays on rank 0, which caches them.  After that, the other ranks read the cache, or build their own
 * arrays.
 */
static int build_data(struct meg_trainer *t, struct meg_err *e)
{
    int r = 0;

    if (meg_train_is_rank0(t) && (r = build_indexes(t, e)) < 0)
        return r;
    meg_host_barrier(t->mesh.world);
    return meg_train_is_rank0(t) ? 0 : build_indexes(t, e);
}

static int open_loaders(struct meg_trainer *t, struct meg_err *e)
{
    const struct meg_dataset *train = meg_data_splits_dataset(t->data, MEG_SPLIT_TRAIN);
    const bool skip_train = t->job->train.skip_train;
    int r;

    if (train && t->state.iteration < t->spec.train_iters &&
        (r = open_loader(t, &t->train, train, t->state.consumed_train, e)) < 0)
        return r;
    return meg_train_open_eval(t, &t->valid, MEG_SPLIT_VALID, skip_train ? 0 : t->state.consumed_valid, e);
}

/* ---- usage ---- */

/* Collect the memory used in each arena and the bytes that this rank sent in the last step. */
static struct meg_usage_vs_plan measure_usage(const struct meg_trainer *t)
{
    const struct meg_model_memory *m = &t->model->used;
    struct meg_usage_vs_plan u = { .memory = { [MEG_COST_MEM_PARAMS] = (double)m->params,
                                               [MEG_COST_MEM_GRADS] = (double)m->grads,
                                               [MEG_COST_MEM_ACTIVATIONS] = (double)m->activations,
                                               [MEG_COST_MEM_WORKSPACE] = (double)m->workspace,
                                               [MEG_COST_MEM_PIPELINE] = (double)t->pipeline.memory_size } };

    if (t->optim) {
        const struct meg_optim_memory *o = &t->optim->used;

        u.memory[MEG_COST_MEM_PARAMS] += (double)o->params;
        u.memory[MEG_COST_MEM_GRADS] += (double)o->grads;
        u.memory[MEG_COST_MEM_MAIN_PARAMS] = (double)o->main;
        u.memory[MEG_COST_MEM_OPTIM] = (double)o->state;
    }
    memcpy(u.comm, t->comm_bytes, sizeof u.comm);
    return u;
}

static void compare_usage(const struct meg_trainer *t, double start_nbytes)
{
    struct meg_usage_vs_plan u = measure_usage(t);

    meg_usage_vs_plan_predict(&u, &t->spec, t->mesh.coords, t->comm_num_micro);
    meg_usage_vs_plan_log(&u, t->mesh.world, start_nbytes);
    if (t->job->usage)
        *t->job->usage = u;
}

/* ---- the run ---- */

static int run(struct meg_trainer *t, struct meg_err *e)
{
    const double start_nbytes = meg_memory_rss();
    int r;

    if (t->job->ckpt.save && !t->job->train.skip_train)
        /* catch signals before the slow set-up; one that arrives during set-up stops the run after one step */
        meg_stop_catch();
    t->sequence_flops = meg_cost_model_flops(&t->job->model, t->spec.model_run.s, t->spec.model_run.s_enc);
    if ((r = open_model(t, e)) < 0 || (r = meg_train_load(t, e)) < 0 || (r = build_data(t, e)) < 0 ||
        (r = open_loaders(t, e)) < 0 || (r = open_logger(t, e)) < 0 || (r = meg_train_loop(t, e)) < 0)
        return r;
    compare_usage(t, start_nbytes);
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
        return meg_plan_print_layouts(&t->spec, world_size(t), stdout, e);
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
        (r = meg_train_agree_or_exit(&t, check_and_plan(&t, e))) < 0 || (r = meg_train_check_inputs(&t, e)) < 0)
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
    meg_mesh_close(&t.mesh);
    meg_layout_free(&t.spec.layout);
    meg_lock_release(&t.lock);
    return r;
}
