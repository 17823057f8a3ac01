/* saving.c - save checkpoints during a run. */
#include <inttypes.h>
#include <string.h>
#include "base/log.h"
#include "io/json.h"
#include "train/trainer.h"

static json_t *pack_state(const struct meg_trainer *t)
{
    const struct meg_train_ckpt_conf *c = &t->job->ckpt;
    json_t *state = json_pack("{s:I,s:I,s:I}", "consumed_train_samples", (json_int_t)t->state.consumed_train,
                              "consumed_valid_samples", (json_int_t)t->state.consumed_valid, "skipped_train_samples",
                              (json_int_t)t->state.skipped_samples);

    if (c->save_optim) {
        json_t *schedule = meg_train_pack_schedule(&t->lr_schedule);
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
    struct meg_ckpt_shard shard[MEG_TRAIN_MAX_OPTIM_SHARDS];
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
    s.weights = meg_train_weight_shard(t);
    s.optim = shard;
    s.noptim = c->save_optim ? meg_train_list_optim_shards(t->optim, shard) : 0;
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
