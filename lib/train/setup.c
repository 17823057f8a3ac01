/* setup.c - check the options of a run, and complete its specification, before large allocations. */
#include <inttypes.h>
#include "base/log.h"
#include "option/check.h"
#include "plan/layout_search.h"
#include "tokenizer/megatron_release.h"
#include "train/trainer.h"

int64_t meg_train_planned_ranks(const struct meg_trainer *t)
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
        meg_plan_reset_layout(job, meg_train_planned_ranks(t));
    if ((r = meg_train_ckpt_conf_check(&job->ckpt, e)) < 0 || (r = meg_logging_conf_check(&job->log, e)) < 0 ||
        (r = meg_train_open_checkpoint(t, e)) < 0 ||
        (r = meg_run_spec_make(&t->spec, job, c->plan ? 1 : meg_train_planned_ranks(t), e)) < 0 ||
        (r = check_groups(t, e)) < 0)
        return r;
    if (meg_train_is_rank0(t))
        meg_train_recompute_warn(c);
    t->scaler = t->spec.scaler;
    return c->skip_train ? 0
                         : meg_lr_schedule_make(&t->lr_schedule, &job->optim, t->spec.train_iters, c->train_samples,
                                                t->spec.batch.global, e);
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
    struct meg_tok_conf *c = &job->tok;
    int r;

    /* with --vocab-file, the default types are those of Megatron's pretrain_gpt.py, pretrain_bert.py, pretrain_t5.py */
    if (!c->type && c->vocab_file && !c->name_or_path && !c->tokenizer_model)
        c->type =
            meg_family_of(&job->model)->samples == MEG_SAMPLES_GPT ? "GPT2BPETokenizer" : "BertWordPieceLowerCase";
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

int meg_train_check_and_plan(struct meg_trainer *t, struct meg_err *e)
{
    int r;

    if ((r = check_options(t, e)) < 0 || (r = meg_device_open(&t->device, &t->job->device, e)) < 0 ||
        (r = open_tokenizer(t, e)) < 0 || (r = meg_run_spec_fit_model(&t->spec, e)) < 0 ||
        (r = meg_train_read_state(t, e)) < 0 || (r = meg_train_check_save_dir(t, e)) < 0)
        return r;
    return t->job->train.plan ? 0 : meg_train_plan_data(t, e);
}
