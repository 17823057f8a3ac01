/* Checkpoints of a run: resume from a checkpoint at the start, and save checkpoints during the run. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "base/log.h"
#include "io/json.h"
#include "tokenizer/megatron_release.h"
#include "train/trainer.h"

/* ---- options ------------------------------------------------------------------------------------ */

/* Copy the option called `name` from an option table. */
static void copy_row(struct meg_opt *out, const struct meg_opt *rows, const char *name)
{
    while (strcmp(rows->name, name) != 0)
        rows++;
    *out = *rows;
}

static int apply_ckpt_options(struct meg_trainer *t, struct meg_err *e)
{
    struct meg_train_job *job = t->job;
    struct meg_opt lengths[3] = { 0 };
    const struct meg_optgroup groups[] = { { "model", meg_model_opts, &job->model },
                                           { "training", lengths, &job->train },
                                           { 0 } };

    copy_row(&lengths[0], meg_train_opts, "seq-length");
    copy_row(&lengths[1], meg_train_opts, "decoder-seq-length");
    t->has_ckpt_tokenizer = !job->tok.type && !job->tok.name_or_path;
    meg_ckpt_tok_conf(t->checkpoint, &job->tok);
    return meg_opt_apply(groups, meg_ckpt_options(t->checkpoint), meg_ckpt_path(t->checkpoint), e);
}

/*
 * Return whether this run continues the run that saved the checkpoint.  If not, the run starts at iteration 0, from the
 * weights of the checkpoint or, without a checkpoint, from initial weights.
 */
static bool is_resumed(const struct meg_trainer *t)
{
    return t->checkpoint && !t->job->ckpt.finetune && meg_ckpt_iteration(t->checkpoint) != MEG_CKPT_RELEASE;
}

/*
 * Use the Megatron release that the checkpoint stores if --megatron-release is not given.  Refuse to resume a native
 * checkpoint with another release: the samples of a blend depend on the release, so the run could read some samples
 * twice.
 */
static int check_release(struct meg_trainer *t, struct meg_err *e)
{
    struct meg_tok_conf *tok = &t->job->tok, saved = { 0 };

    meg_ckpt_tok_conf(t->checkpoint, &saved);
    if (!tok->megatron_release)
        tok->megatron_release = saved.megatron_release;
    if (!is_resumed(t) || !meg_ckpt_is_native(t->checkpoint) ||
        meg_megatron_release_find(tok->megatron_release) == meg_megatron_release_find(saved.megatron_release))
        return 0;
    return meg_fail(
        e, MEG_EUSAGE,
        "--megatron-release %s: %s was saved with release %s; remove the option, or use --finetune to start a new "
        "run from the weights of the checkpoint",
        tok->megatron_release, meg_ckpt_path(t->checkpoint), meg_megatron_release_find(saved.megatron_release)->name);
}

/* Return whether `dir` contains a checkpoint on rank 0.  meg_ckpt_open_on_all refuses a foreign one. */
static bool has_checkpoint(const struct meg_trainer *t, const char *dir)
{
    int32_t exists = meg_train_is_rank0(t) && (meg_ckpt_exists(dir) || meg_ckpt_is_foreign(dir));

    meg_host_broadcast(t->mesh.world, &exists, 1, MEG_DTYPE_I32, 0);
    return exists;
}

int meg_train_open_checkpoint(struct meg_trainer *t, struct meg_err *e)
{
    struct meg_train_ckpt_conf *c = &t->job->ckpt;
    int r;

    if (c->pretrained && !(c->load && has_checkpoint(t, c->load))) {
        c->load = c->pretrained;
        c->finetune = true;
    }
    if (!c->load)
        return 0;
    if (!has_checkpoint(t, c->load)) {
        if (c->exit_on_missing || c->pretrained)
            return meg_fail(e, MEG_ENOENT, "--%s %s: the directory contains no checkpoint%s",
                            c->pretrained ? "pretrained-checkpoint" : "load", c->load,
                            c->pretrained ? "" : ", and --exit-on-missing-checkpoint is set");
        meg_warn("--load %s: the directory contains no checkpoint; training from scratch", c->load);
        return 0;
    }
    if ((r = meg_ckpt_open_on_all(&t->checkpoint, c->load, c->ckpt_step, t->mesh.world, e)) < 0 ||
        (r = check_release(t, e)) < 0 || (t->job->train.skip_train && (r = meg_ckpt_check_head(t->checkpoint, e)) < 0))
        return r;
    return c->use_checkpoint_args || !meg_ckpt_is_native(t->checkpoint) ? apply_ckpt_options(t, e) : 0;
}

/* ---- learning-rate and weight-decay schedule ---------------------------------------------------- */

static json_t *pack_schedule(const struct meg_lr_schedule *s)
{
    json_t *o = json_pack("{s:f,s:f,s:f,s:I,s:s,s:f,s:f,s:I,s:s}", "max_lr", s->max_lr, "min_lr", s->min_lr,
                          "lr_warmup_steps", s->warmup, "lr_decay_steps", (json_int_t)s->decay, "lr_decay_style",
                          meg_lr_style_name(s->style), "start_wd", s->start_wd, "end_wd", s->end_wd, "wd_incr_steps",
                          (json_int_t)s->wd_incr, "wd_incr_style", meg_wd_style_name(s->wd_style));

    if (s->style == MEG_LR_WSD) {
        json_object_set_new(o, "lr_wsd_decay_style", json_string(meg_wsd_style_name(s->wsd_style)));
        json_object_set_new(o, "wsd_decay_steps", json_integer(s->wsd_decay));
    }
    return o;
}

/*
 * Read the parameters of the WSD decay.  If an older checkpoint does not contain them, keep the values of the command
 * line.
 */
static int unpack_wsd(struct meg_lr_schedule *s, const json_t *o, const char *from, struct meg_err *e)
{
    const char *style = meg_wsd_style_name(s->wsd_style);
    int r;

    if ((r = meg_json_get_str(o, "lr_wsd_decay_style", MEG_JSON_OPTIONAL, &style, from, e)) < 0 ||
        (r = meg_json_get_i64(o, "wsd_decay_steps", MEG_JSON_OPTIONAL, &s->wsd_decay, from, e)) < 0)
        return r;
    if (!meg_wsd_style_parse(style, &s->wsd_style))
        return meg_fail(e, MEG_EFORMAT, "%s: unknown lr_wsd_decay_style '%.40s'", from, style);
    if (s->wsd_decay <= 0)
        return meg_fail(e, MEG_EUSAGE,
                        "%s does not contain the length of the WSD decay; use --lr-wsd-decay-iters or "
                        "--lr-wsd-decay-samples",
                        from);
    return 0;
}

static int unpack_schedule(struct meg_lr_schedule *s, const json_t *o, const char *from, struct meg_err *e)
{
    const char *lr_style, *wd_style;
    int r;

    if ((r = meg_json_get_f64(o, "max_lr", MEG_JSON_REQUIRED, &s->max_lr, from, e)) < 0 ||
        (r = meg_json_get_f64(o, "min_lr", MEG_JSON_REQUIRED, &s->min_lr, from, e)) < 0 ||
        (r = meg_json_get_f64(o, "lr_warmup_steps", MEG_JSON_REQUIRED, &s->warmup, from, e)) < 0 ||
        (r = meg_json_get_i64(o, "lr_decay_steps", MEG_JSON_REQUIRED, &s->decay, from, e)) < 0 ||
        (r = meg_json_get_str(o, "lr_decay_style", MEG_JSON_REQUIRED, &lr_style, from, e)) < 0 ||
        (r = meg_json_get_f64(o, "start_wd", MEG_JSON_REQUIRED, &s->start_wd, from, e)) < 0 ||
        (r = meg_json_get_f64(o, "end_wd", MEG_JSON_REQUIRED, &s->end_wd, from, e)) < 0 ||
        (r = meg_json_get_i64(o, "wd_incr_steps", MEG_JSON_REQUIRED, &s->wd_incr, from, e)) < 0 ||
        (r = meg_json_get_str(o, "wd_incr_style", MEG_JSON_REQUIRED, &wd_style, from, e)) < 0)
        return r;
    if (!meg_lr_style_parse(lr_style, &s->style))
        return meg_fail(e, MEG_EFORMAT, "%s: unknown lr_decay_style '%.40s'", from, lr_style);
    if (!meg_wd_style_parse(wd_style, &s->wd_style))
        return meg_fail(e, MEG_EFORMAT, "%s: unknown wd_incr_style '%.40s'", from, wd_style);
    return s->style == MEG_LR_WSD ? unpack_wsd(s, o, from, e) : 0;
}

/*
 * For each setting whose value A in the run differs from its value B in the checkpoint, append "SETTING A instead of
 * B".  Skip a setting that is absent from one of the two; only the decay style WSD has settings of the WSD decay.
 */
static void append_differences(struct meg_str *out, json_t *run, const json_t *saved)
{
    static const char *const option[][2] = {
        { "max_lr", "--lr" },
        { "min_lr", "--min-lr" },
        { "lr_warmup_steps", "warm-up samples" },
        { "lr_decay_steps", "decay samples" },
        { "lr_decay_style", "--lr-decay-style" },
        { "lr_wsd_decay_style", "--lr-wsd-decay-style" },
        { "wsd_decay_steps", "WSD decay samples" },
        { "start_wd", "weight decay at the start" },
        { "end_wd", "weight decay at the end" },
        { "wd_incr_steps", "weight-decay samples" },
        { "wd_incr_style", "--weight-decay-incr-style" },
    };

    for (size_t i = 0; i < sizeof option / sizeof *option; i++) {
        const json_t *a = json_object_get(run, option[i][0]), *b = json_object_get(saved, option[i][0]);
        if (!a || !b || json_equal(a, b))
            continue;
        meg_str_printf(out, "%s%s ", out->n ? "; " : "", option[i][1]);
        meg_json_dump(a, 0, out);
        meg_str_printf(out, " instead of ");
        meg_json_dump(b, 0, out);
    }
}

/*
 * Choose the schedule of the command line with --override-opt_param-scheduler, or the checkpoint's with
 * --use-checkpoint-opt_param-scheduler.  Without these options, return MEG_EUSAGE if the two schedules differ.
 */
static int resolve_schedule(struct meg_trainer *t, const json_t *saved, const char *from, struct meg_err *e)
{
    const struct meg_train_ckpt_conf *c = &t->job->ckpt;
    struct meg_str diff = { 0 };
    json_t *run;
    int r = 0;

    if (c->override_scheduler)
        return 0;
    if (c->use_checkpoint_scheduler)
        return unpack_schedule(&t->lr_schedule, saved, from, e);
    run = pack_schedule(&t->lr_schedule);
    append_differences(&diff, run, saved);
    if (diff.n)
        r = meg_fail(e, MEG_EUSAGE,
                     "the schedule of the command line differs from that of %s: %s; use --override-opt_param-scheduler "
                     "for the schedule of the command line, or --use-checkpoint-opt_param-scheduler for that of the "
                     "checkpoint",
                     from, diff.s);
    json_decref(run);
    meg_str_free(&diff);
    return r;
}

/* ---- loading ------------------------------------------------------------------------------------ */

static bool is_same_dir(const char *a, const char *b)
{
    struct stat x, y;

    return a && b && stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

static int missing_error(const char *from, const char *what, const char *option, struct meg_err *e)
{
    return meg_fail(e, MEG_EFORMAT, "%s has no %s; use %s to resume without it, or --finetune to load only the weights",
                    from, what, option);
}

static int read_state(struct meg_trainer *t, const json_t *state, const char *from, struct meg_err *e)
{
    const struct meg_train_ckpt_conf *c = &t->job->ckpt;
    json_t *optim = NULL, *schedule = NULL, *rng = NULL, *scaler = NULL;
    int64_t seed;
    int r;

    if ((r = meg_json_get_i64(state, "consumed_train_samples", MEG_JSON_REQUIRED, &t->state.consumed_train, from, e)) <
            0 ||
        (r = meg_json_get_i64(state, "consumed_valid_samples", MEG_JSON_REQUIRED, &t->state.consumed_valid, from, e)) <
            0 ||
        (r = meg_json_get_i64(state, "skipped_train_samples", MEG_JSON_REQUIRED, &t->state.skipped_samples, from, e)) <
            0 ||
        (r = meg_json_get_object(state, "optimizer", MEG_JSON_OPTIONAL, &optim, from, e)) < 0 ||
        (r = meg_json_get_object(state, "opt_param_scheduler", MEG_JSON_OPTIONAL, &schedule, from, e)) < 0 ||
        (r = meg_json_get_object(state, "grad_scaler", MEG_JSON_OPTIONAL, &scaler, from, e)) < 0 ||
        (r = meg_json_get_object(state, "rng", MEG_JSON_OPTIONAL, &rng, from, e)) < 0)
        return r;
    if (c->load_rng && !t->job->train.skip_train) {
        if (!rng)
            return missing_error(from, "dropout seed", "--no-load-rng", e);
        if ((r = meg_json_get_i64(rng, "dropout_seed", MEG_JSON_REQUIRED, &seed, from, e)) < 0)
            return r;
        t->spec.model_run.seed = (uint32_t)seed;
    }
    if (t->job->train.skip_train)
        return 0;
    if (!c->load_optim && c->use_checkpoint_scheduler && meg_train_is_rank0(t))
        meg_warn("--use-checkpoint-opt_param-scheduler has no effect with --no-load-optim, as in Megatron-LM: the "
                 "schedules of learning rate and weight decay are those of the command line, and start anew; remove "
                 "--no-load-optim to continue the schedules of %s",
                 from);
    if (!c->load_optim)
        return 0;
    if (!optim || !schedule)
        return missing_error(from, "optimizer state", "--no-load-optim", e);
    if ((r = meg_json_get_i64(optim, "step", MEG_JSON_REQUIRED, &t->checkpoint_optim_steps, from, e)) < 0 ||
        (r = meg_json_get_i64(schedule, "num_steps", MEG_JSON_REQUIRED, &t->state.lr_steps, from, e)) < 0 ||
        (r = meg_scaler_unpack(&t->scaler, scaler, from, e)) < 0)
        return r;
    return resolve_schedule(t, schedule, from, e);
}

int meg_train_read_state(struct meg_trainer *t, struct meg_err *e)
{
    struct meg_str from = { 0 };
    int r;

    t->spec.model_run.seed = (uint32_t)t->job->train.seed;
    if (!t->checkpoint)
        return 0;
    if ((r = meg_ckpt_check_conf(t->checkpoint, &t->job->model, e)) < 0 || !is_resumed(t))
        return r;
    meg_str_printf(&from, "%s/state.json", meg_ckpt_path(t->checkpoint));
    t->state.iteration = meg_ckpt_iteration(t->checkpoint);
    if (!meg_ckpt_run_state(t->checkpoint))
        r = meg_fail(e, MEG_EFORMAT, "%s has no training state; use --finetune to load only the weights", from.s);
    else
        r = read_state(t, meg_ckpt_run_state(t->checkpoint), from.s, e);
    if (is_same_dir(t->job->ckpt.load, t->job->ckpt.save))
        t->last_saved = t->last_committed = t->loaded_iteration = t->state.iteration;
    meg_str_free(&from);
    return r;
}

int meg_train_check_save_dir(const struct meg_trainer *t, struct meg_err *e)
{
    const struct meg_train_ckpt_conf *c = &t->job->ckpt;
    const int64_t newest = c->save && !t->job->train.skip_train ? meg_ckpt_newest_iteration(c->save) : -1;

    if (newest < 0 || c->overwrite)
        return 0;
    if (!is_resumed(t) || !is_same_dir(c->load, c->save))
        return meg_fail(e, MEG_EUSAGE,
                        "--save %s: the directory contains checkpoints of another run, up to iteration %" PRId64
                        "; resume it with --load %s, save to a different directory, or use --overwrite-checkpoints",
                        c->save, newest, c->save);
    if (newest > t->state.iteration && c->ckpt_step != MEG_UNSET && meg_train_is_rank0(t))
        meg_warn("--ckpt-step %" PRId64 ": %s has checkpoints up to iteration %" PRId64
                 "; this run will replace those of the iterations that it saves",
                 c->ckpt_step, c->save, newest);
    return 0;
}

enum { MAX_OPTIM_SHARDS = 4 };

/* Describe the elements of the flat parameter buffer that this rank updates; the caller sets name, data and dtype. */
static struct meg_ckpt_shard optim_shard(const struct meg_optim *o)
{
    return (struct meg_ckpt_shard){ .device = o->model->device,
                                    .ranges = o->mesh->layout.zero.nshards ? o->shard.range : NULL,
                                    .nranges = o->shard.nbucket_shards,
                                    .replica = o->mesh->dp[MEG_DP_DENSE].replica->rank,
                                    .nreplicas = o->mesh->dp[MEG_DP_DENSE].replica->size };
}

/*
 * Set `shard` to this rank's shards of the main parameters and of the optimizer states.  Main parameters are omitted if
 * the optimizer has none, or if the weights are f32 and so equal to them.  Return the number of shards.
 */
static int list_optim_shards(const struct meg_optim *o, struct meg_ckpt_shard shard[MAX_OPTIM_SHARDS])
{
    const struct meg_ckpt_shard common = optim_shard(o);
    int n = 0;

    if (o->buf.main && o->model->run.dtype != MEG_DTYPE_F32) {
        shard[n] = common;
        shard[n].name = MEG_CKPT_MAIN_PARAMS;
        shard[n++].data = o->buf.main;
    }
    for (int i = 0; i < o->nstates; i++) {
        shard[n] = common;
        shard[n].name = o->state_name[i];
        shard[n].dtype = o->state_dtype[i];
        shard[n++].data = o->buf.state[i];
    }
    return n;
}

static struct meg_ckpt_shard weight_shard(const struct meg_trainer *t)
{
    void *shards = t->optim ? meg_optim_param_shards(t->optim) : NULL;
    struct meg_ckpt_shard s = { .data = t->model->w, .device = t->device };

    if (shards) {
        s = optim_shard(t->optim);
        s.data = shards;
    }
    s.dtype = t->model->run.dtype;
    return s;
}

/* Load weights and, if with_optim, the optimizer state from a checkpoint that every rank has opened. */
static int load(struct meg_trainer *t, struct meg_ckpt *from, bool with_optim, struct meg_err *e)
{
    struct meg_ckpt_shard shard[1 + MAX_OPTIM_SHARDS] = { weight_shard(t) };
    int n = 1, r;

    if (t->optim)
        meg_optim_finish_param_sync(t->optim);
    if (with_optim) {
        n += list_optim_shards(t->optim, shard + 1);
        if (shard[0].dtype == MEG_DTYPE_F32 && meg_ckpt_has_optim_state(from, MEG_CKPT_MAIN_PARAMS))
            shard[0].name = MEG_CKPT_MAIN_PARAMS; /* more precise than the weights that a bf16 or fp16 run saved */
    }
    if ((r = meg_ckpt_load(from, &t->model->params, &t->mesh, shard, n, e)) < 0)
        return meg_train_fail_on_rank0(t, r);
    if (t->optim)
        meg_optim_reload_params(t->optim, with_optim);
    return 0;
}

static int optim_steps_of(const struct meg_ckpt *c, int64_t *steps, struct meg_err *e)
{
    json_t *optim = NULL;
    int r = meg_json_get_object(meg_ckpt_run_state(c), "optimizer", MEG_JSON_REQUIRED, &optim, meg_ckpt_path(c), e);

    return r < 0 ? r : meg_json_get_i64(optim, "step", MEG_JSON_REQUIRED, steps, meg_ckpt_path(c), e);
}

int meg_train_roll_back(struct meg_trainer *t, struct meg_err *e)
{
    struct meg_ckpt *from = NULL;
    int64_t steps = 0;
    int r;

    if ((r = meg_ckpt_open_on_all(&from, t->job->ckpt.save, t->last_saved, t->mesh.world, e)) == 0)
        r = optim_steps_of(from, &steps, e);
    if ((r = meg_train_agree_or_exit(t, r < 0 ? r : 0)) == 0)
        r = load(t, from, true, e);
    if (r == 0)
        meg_optim_restore(t->optim, steps, &t->scaler);
    meg_ckpt_close(from);
    return r;
}

static void log_loaded(const struct meg_trainer *t)
{
    const struct meg_ckpt *c = t->checkpoint;
    const int64_t iteration = meg_ckpt_source_iteration(c), samples = meg_ckpt_consumed_samples(c);

    if (is_resumed(t))
        meg_info("resuming after iteration %" PRId64 ", from %s", t->state.iteration, meg_ckpt_path(c));
    else if (meg_ckpt_is_native(c) || iteration == MEG_CKPT_RELEASE)
        meg_info("loaded weights of %s", meg_ckpt_path(c));
    else if (samples < 0)
        meg_info("loaded weights of %s, trained for %" PRId64 " iterations", meg_ckpt_path(c), iteration);
    else
        meg_info("loaded weights of %s, trained for %" PRId64 " iterations and %" PRId64 " samples", meg_ckpt_path(c),
                 iteration, samples);
}

static void init_weights(struct meg_trainer *t)
{
    if (t->optim)
        meg_optim_init(t->optim, (uint32_t)t->job->train.seed);
    else
        meg_model_init(t->model, (uint32_t)t->job->train.seed);
}

int meg_train_load(struct meg_trainer *t, struct meg_err *e)
{
    const bool with_optim = t->checkpoint && is_resumed(t) && t->job->ckpt.load_optim && t->optim;
    int r;

    if (t->optim)
        meg_optim_restore(t->optim, with_optim ? t->checkpoint_optim_steps : 0, &t->scaler);
    if (!t->checkpoint || meg_ckpt_lacks_head(t->checkpoint))
        init_weights(t);
    if (!t->checkpoint)
        return 0;
    if ((r = load(t, t->checkpoint, with_optim, e)) < 0)
        return r;
    log_loaded(t);
    if (meg_ckpt_lacks_head(t->checkpoint) && meg_train_is_rank0(t))
        meg_ckpt_warn_missing_head(t->checkpoint);
    return 0;
}

/* ---- saving ------------------------------------------------------------------------------------- */

static json_t *pack_state(const struct meg_trainer *t)
{
    const struct meg_train_ckpt_conf *c = &t->job->ckpt;
    json_t *state = json_pack("{s:I,s:I,s:I}", "consumed_train_samples", (json_int_t)t->state.consumed_train,
                              "consumed_valid_samples", (json_int_t)t->state.consumed_valid, "skipped_train_samples",
                              (json_int_t)t->state.skipped_samples);

    if (c->save_optim) {
        json_t *schedule = pack_schedule(&t->lr_schedule);
        json_object_set_new(schedule, "num_steps", json_integer(t->state.lr_steps));
        json_object_set_new(state, "optimizer",
                            json_pack("{s:s,s:I}", "name", meg_opt_choice(meg_optim_opts, "optimizer", &t->job->optim),
                                      "step", (json_int_t)t->optim->step_count));
        json_object_set_new(state, "opt_param_scheduler", schedule);
        if (t->scaler.type == MEG_SCALER_DYNAMIC)
            json_object_set_new(state, "grad_scaler", meg_scaler_pack(&t->scaler));
    }
    if (c->save_rng)
        json_object_set_new(state, "rng", json_pack("{s:I}", "dropout_seed", (json_int_t)t->spec.model_run.seed));
    return state;
}

/* Return whether a line of an option dump sets the option called name. */
static bool sets_option(const char *line, const char *name)
{
    const size_t n = strlen(name);

    return strncmp(line, name, n) == 0 && line[n] == ' ';
}

/*
 * Return whether a line sets an option that depends on the machines of a run rather than on the model: parallel layout,
 * recomputation, CUDA graphs, asynchronous saves, timeout.  Only run.conf stores such options; state.json is
 * independent of them.
 */
static bool is_layout_option(const char *line)
{
    static const char *const others[] = {
        "async-save",           "cuda-graph-impl",       "distribute-saved-activations", "distributed-timeout-minutes",
        "enable-cuda-graph",    "recompute-activations", "recompute-granularity",        "recompute-method",
        "recompute-num-layers",
    };
    const struct meg_opt *const tables[] = { meg_layout_opts, meg_zero_opts };

    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        for (const struct meg_opt *row = tables[i]; row->name; row++)
            if (sets_option(line, row->name))
                return true;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (sets_option(line, others[i]))
            return true;
    return false;
}

/* Append the lines of an option dump that do not set layout options (is_layout_option). */
static void keep_options(struct meg_str *out, const char *dump)
{
    meg_str_add(out, "", 0);
    for (size_t n; *dump; dump += n) {
        n = strcspn(dump, "\n") + 1;
        if (!is_layout_option(dump))
            meg_str_add(out, dump, n);
    }
}

/* Return the iteration after which --save-interval or the end of the run next saves a checkpoint. */
static int64_t next_save(const struct meg_trainer *t)
{
    const int64_t interval = t->job->ckpt.save_interval;
    const int64_t next = interval == MEG_UNSET ? t->spec.train_iters : (t->state.iteration / interval + 1) * interval;

    return next < t->spec.train_iters ? next : t->spec.train_iters;
}

/* Handle the end of a save of `state`.  The result r of the save is equal on all ranks. */
static int finish_save(struct meg_trainer *t, const struct meg_train_state *state, int r, enum meg_save_failure failure,
                       struct meg_err *e)
{
    if (r < 0) {
        t->last_saved = t->last_committed;
        if (failure == MEG_SAVE_MUST_NOT_FAIL || (failure == MEG_SAVE_MAY_FAIL && t->job->ckpt.exit_on_save_failure))
            return meg_train_fail_on_rank0(t, r);
        if (!meg_train_is_rank0(t))
            return 0;
        if (failure == MEG_SAVE_BEFORE_ERROR)
            meg_warn("%s; iteration %" PRId64 " is not saved", e->msg, state->iteration);
        else
            meg_warn("%s; iteration %" PRId64 " is not saved; the run continues, and saves again after iteration "
                     "%" PRId64,
                     e->msg, state->iteration, next_save(t));
        return 0;
    }
    t->last_committed = state->iteration;
    if (!meg_train_is_rank0(t))
        return 0;
    meg_info("saved iteration %" PRId64 " in %s", state->iteration, t->job->ckpt.save);
    meg_train_progress_log_save(t, state);
    return 0;
}

int meg_train_save_poll(struct meg_trainer *t, bool wait, enum meg_save_failure failure, struct meg_err *e)
{
    const int r = t->async_save ? meg_ckpt_save_poll(&t->async_save, wait, e) : 0;

    return r == 0 ? 0 : finish_save(t, &t->async_save_state, r, failure, e);
}

int meg_train_save(struct meg_trainer *t, enum meg_save_failure failure, struct meg_err *e)
{
    const struct meg_train_ckpt_conf *c = &t->job->ckpt;
    struct meg_str run_conf = { 0 }, options = { 0 };
    struct meg_ckpt_shard shard[MAX_OPTIM_SHARDS];
    struct meg_ckpt_save_args s = { 0 };
    json_t *state;
    int r;

    if ((r = meg_train_save_poll(t, true, MEG_SAVE_MAY_FAIL, e)) < 0)
        return r;
    /* if another run writes to --save, this run ends: later saves would mix the checkpoints of both runs */
    if (failure != MEG_SAVE_BEFORE_ERROR && (r = meg_train_agree_or_exit(t, meg_lock_check(&t->lock, e))) < 0)
        return r;
    meg_optim_finish_param_sync(t->optim);
    state = pack_state(t);
    meg_opt_dump(t->groups, &run_conf);
    keep_options(&options, run_conf.s);
    s.dir = c->save;
    s.lock = t->lock.slot ? &t->lock : NULL;
    s.iteration = t->state.iteration;
    s.options = options.s;
    s.run_conf = run_conf.s;
    s.model = &t->model->conf;
    s.mesh = &t->mesh;
    s.params = &t->model->params;
    s.weights = weight_shard(t);
    s.optim = shard;
    s.noptim = c->save_optim ? list_optim_shards(t->optim, shard) : 0;
    s.tok = &t->tok_files;
    s.state = state;
    s.keep_last = c->keep_last == MEG_UNSET ? 0 : c->keep_last;
    s.loaded_iteration = t->loaded_iteration;
    r = c->async_save ? meg_ckpt_save_begin(&t->async_save, &s, e) : meg_ckpt_save(&s, e);
    json_decref(state);
    meg_str_free(&run_conf);
    meg_str_free(&options);
    t->last_saved = t->state.iteration;
    t->async_save_state = t->state;
    if (r == 0 && c->async_save)
        return 0;
    return finish_save(t, &t->state, r, failure, e);
}

void meg_train_save_before_error(struct meg_trainer *t, struct meg_err *e)
{
    const char *dir = t->job->ckpt.save;
    struct meg_err first, unused;

    if (!dir || !t->optim || t->state.iteration == 0)
        return;
    if (t->last_saved != t->state.iteration)
        meg_train_save(t, MEG_SAVE_BEFORE_ERROR, &unused);
    meg_train_save_poll(t, true, MEG_SAVE_BEFORE_ERROR, &unused);
    if (!e || t->last_committed != t->state.iteration)
        return;
    first = *e;
    meg_fail(e, first.code, "%.1900s; iteration %" PRId64 " is saved in %.100s", first.msg, t->state.iteration, dir);
}
