/* loaders.c - plan the data of a run, build its indexes, and open its loaders. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "data/masked/bert_t5_dataset.h"
#include "tokenizer/megatron_release.h"
#include "train/trainer.h"
#include "watchdog/watchdog.h"

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

int meg_train_plan_data(struct meg_trainer *t, struct meg_err *e)
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

int meg_train_build_data(struct meg_trainer *t, struct meg_err *e)
{
    int r = 0;

    if (meg_train_is_rank0(t) && (r = build_indexes(t, e)) < 0)
        return r;
    meg_host_barrier(t->mesh.world);
    return meg_train_is_rank0(t) ? 0 : build_indexes(t, e);
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

int meg_train_open_loaders(struct meg_trainer *t, struct meg_err *e)
{
    const struct meg_dataset *train = meg_data_splits_dataset(t->data, MEG_SPLIT_TRAIN);
    const bool skip_train = t->job->train.skip_train;
    int r;

    if (train && t->state.iteration < t->spec.train_iters &&
        (r = open_loader(t, &t->train, train, t->state.consumed_train, e)) < 0)
        return r;
    return meg_train_open_eval(t, &t->valid, MEG_SPLIT_VALID, skip_train ? 0 : t->state.consumed_valid, e);
}
