/* resume.c - open and load the checkpoint that a run starts from, and restore the state of the run that saved it. */
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include "base/log.h"
#include "io/json.h"
#include "tokenizer/megatron_release.h"
#include "train/trainer.h"

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
    return meg_train_resolve_schedule(t, schedule, from, e);
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
    meg_str_printf(&from, "%s%s", meg_ckpt_path(t->checkpoint), meg_ckpt_is_native(t->checkpoint) ? "/state.json" : "");
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

/* Load weights and, if with_optim, the optimizer state from a checkpoint that every rank has opened. */
static int load(struct meg_trainer *t, struct meg_ckpt *from, bool with_optim, struct meg_err *e)
{
    struct meg_ckpt_shard shard[1 + MEG_TRAIN_MAX_OPTIM_SHARDS] = { meg_train_weight_shard(t) };
    int n = 1, r;

    if (t->optim)
        meg_optim_finish_param_sync(t->optim);
    if (with_optim) {
        n += meg_train_list_optim_shards(t->optim, shard + 1);
        if (shard[0].dtype == MEG_DTYPE_F32 && meg_ckpt_has_optim_state(from, MEG_CKPT_MAIN_PARAMS)) {
            /* they are more precise than the weights that a bf16 or fp16 run saved, but do not include frozen ones */
            shard[n] = shard[0];
            shard[n++].name = MEG_CKPT_MAIN_PARAMS;
        }
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
