/* loop.c - the training loop: steps, logging, evaluation, checkpoints, and the conditions that end the run. */
#include <inttypes.h>
#include <math.h>
#include "base/clock.h"
#include "base/log.h"
#include "file/file.h"
#include "train/nan.h"
#include "train/trainer.h"

/* ---- logging ---- */

static struct meg_iteration_stats iteration_stats(const struct meg_trainer *t, const struct meg_step_result *s)
{
    const struct meg_train_job *job = t->job;

    return (struct meg_iteration_stats){
        .iteration = s->state.iteration,
        .train_iters = t->spec.train_iters,
        .consumed_samples = s->state.consumed_train,
        .skipped_samples = s->state.skipped_samples,
        .global_batch_size = s->batch.effective,
        .loss = meg_train_named_losses(t, s->loss),
        .learning_rate = meg_train_lr(t, s->state.lr_steps),
        .decoupled_learning_rate = isnan(job->optim.decoupled_lr) ? NAN : meg_train_decoupled_lr(t, s->state.lr_steps),
        .loss_scale = t->scaler.scale,
        .grad_norm = s->grad_norm,
        .num_zeros = s->num_zeros,
        .params_norm = s->params_norm,
        .num_skipped_iterations = s->is_skipped,
        .num_nan_iterations = !meg_all_finite(s->loss),
        .iteration_ms = s->seconds * 1e3,
        .tokens_per_s = (double)(s->batch.effective * job->train.seq_length) / s->seconds,
        .ranks = t->mesh.world->size,
        .flops = t->sequence_flops * (double)s->batch.effective,
    };
}

static void add_iteration(struct meg_log_totals *sum, const struct meg_iteration_stats *stats, double tokens,
                          double seconds)
{
    sum->n++;
    sum->nan += stats->num_nan_iterations;
    sum->skipped += stats->num_skipped_iterations;
    for (int i = 0; i < stats->loss.n; i++)
        sum->loss[i] += stats->num_skipped_iterations ? 0 : stats->loss.value[i];
    sum->seconds += seconds;
    sum->tokens += tokens;
    sum->flops += stats->flops;
}

/* Replace the losses, time, throughput and counts of the last iteration by the means and counts of the interval. */
static void set_interval_means(struct meg_iteration_stats *stats, const struct meg_log_totals *sum)
{
    const double n = (double)sum->n;

    for (int i = 0; i < stats->loss.n; i++)
        stats->loss.value[i] = sum->loss[i] / (n - (double)sum->skipped);
    stats->num_skipped_iterations = sum->skipped;
    stats->num_nan_iterations = sum->nan;
    stats->iteration_ms = sum->seconds / n * 1e3;
    stats->tokens_per_s = sum->tokens / sum->seconds;
    stats->flops = sum->flops / n;
}

static void log_iteration(struct meg_trainer *t, const struct meg_step_result *s)
{
    const struct meg_train_job *job = t->job;
    const bool is_interval = s->state.iteration % job->log.log_interval == 0;
    struct meg_iteration_stats stats;

    if (job->log.log_straggler && is_interval)
        meg_straggler_report(&t->straggler, t->mesh.world, s->state.iteration);
    if (!meg_train_is_rank0(t))
        return;
    stats = iteration_stats(t, s);
    meg_logger_step(t->logger, &stats);
    add_iteration(&t->log_totals, &stats, (double)(s->batch.effective * job->train.seq_length), s->seconds);
    if (!is_interval)
        return;
    set_interval_means(&stats, &t->log_totals);
    t->log_totals = (struct meg_log_totals){ 0 };
    meg_logger_interval(t->logger, &stats);
}

static void warn_about_spike(struct meg_trainer *t, const struct meg_step_result *s)
{
    const double before = t->last_loss;

    if (t->job->train.check_for_spiky_loss && before > 0 && fabs(s->loss[0] - before) / before >= 0.2)
        meg_warn("iteration %" PRId64 ": %s changed from %.6g to %.6g in one iteration", s->state.iteration,
                 meg_model_loss_name(t->model, 0), before, s->loss[0]);
    t->last_loss = s->loss[0];
}

/* Read and log the results of queued steps, oldest first, until at most max steps are left. */
static int finish_steps(struct meg_trainer *t, int max, struct meg_err *e)
{
    int r;

    while (t->num_queued > max) {
        struct meg_step_result s;

        if ((r = meg_train_step_result(t, &s, e)) < 0)
            return r;
        warn_about_spike(t, &s);
        log_iteration(t, &s);
    }
    return 0;
}

/* ---- evaluation ---- */

/* Fail if a loss is not finite, unless the options allow that.  The losses are equal on all ranks. */
static int check_evaluation(const struct meg_trainer *t, const char *split, const double *loss, struct meg_err *e)
{
    const struct meg_train_conf *c = &t->job->train;
    const int bad = isfinite(loss[0]) ? 1 : 0;

    if (meg_all_finite(loss) || !c->check_for_nan || c->on_nan == MEG_ON_NAN_SKIP)
        return 0;
    return meg_train_fail_on_rank0(t, meg_fail(e, MEG_EFAIL,
                                               "iteration %" PRId64 ": the %s of the %s split is %s; check the "
                                               "weights for NaN or Inf, or continue with --on-nan skip",
                                               t->state.iteration, meg_model_loss_name(t->model, bad), split,
                                               isnan(loss[bad]) ? "nan" : "inf"));
}

static int evaluate_group(struct meg_trainer *t, struct meg_train_eval_group *g, bool is_last, struct meg_err *e)
{
    struct meg_evaluation v = { .split = meg_split_names[g->split], .group = g->name, .is_last = is_last };
    const char *name = g->name ? g->name : v.split;
    double loss[MEG_MAX_LOSSES];
    int r;

    if ((r = meg_train_evaluate(t, g->loader, name, loss, e)) < 0)
        return r;
    if (meg_train_stop_requested(t, NULL))
        return 0;
    v.iteration = t->state.iteration;
    v.consumed_samples = t->state.consumed_train;
    v.loss = meg_train_named_losses(t, loss);
    if (meg_train_is_rank0(t))
        meg_logger_evaluation(t->logger, &v);
    return check_evaluation(t, name, loss, e);
}

static int evaluate(struct meg_trainer *t, struct meg_train_eval *v, bool is_last, struct meg_err *e)
{
    int r = v->n ? finish_steps(t, 0, e) : 0;

    for (int i = 0; i < v->n && r == 0; i++)
        r = evaluate_group(t, &v->group[i], is_last, e);
    return r;
}

/*
 * Evaluate before the first step to get a baseline.  The first evaluation during training reads the same samples again.
 */
static int evaluate_before(struct meg_trainer *t, struct meg_err *e)
{
    struct meg_train_eval valid;
    int r = meg_train_open_eval(t, &valid, MEG_SPLIT_VALID, 0, e);

    if (r == 0)
        r = evaluate(t, &valid, false, e);
    meg_train_close_eval(&valid);
    return r;
}

static int evaluate_during(struct meg_trainer *t, struct meg_err *e)
{
    const struct meg_batch_schedule *p = &t->spec.batch;

    if (t->valid.n == 0 || t->state.iteration % t->job->train.eval_interval)
        return 0;
    t->state.consumed_valid += /* a run that resumes from a later checkpoint skips the samples of this evaluation */
        t->job->train.eval_iters * (p->global / (p->micro * p->dp_size) * p->micro * p->dp_size);
    return evaluate(t, &t->valid, false, e);
}

static int evaluate_after(struct meg_trainer *t, struct meg_err *e)
{
    struct meg_train_eval test = { 0 };
    int r;

    if ((r = evaluate(t, &t->valid, true, e)) == 0 && (r = meg_train_open_eval(t, &test, MEG_SPLIT_TEST, 0, e)) == 0)
        r = evaluate(t, &test, true, e);
    meg_train_close_eval(&test);
    return r;
}

/* ---- saving and stopping ---- */

static int save_once(struct meg_trainer *t, enum meg_save_failure failure, struct meg_err *e)
{
    int r;

    if (!t->job->ckpt.save || t->last_saved == t->state.iteration)
        return 0;
    return (r = finish_steps(t, 0, e)) < 0 ? r : meg_train_save(t, failure, e);
}

/* Save at the end of a run and wait for the save to finish. */
static int save_and_wait(struct meg_trainer *t, struct meg_err *e)
{
    int r = save_once(t, MEG_SAVE_MUST_NOT_FAIL, e);

    return r < 0 ? r : meg_train_save_poll(t, true, MEG_SAVE_MUST_NOT_FAIL, e);
}

static int mark_done(struct meg_trainer *t, bool is_done, struct meg_err *e)
{
    return meg_train_is_rank0(t) ? meg_ckpt_mark_done(t->job->ckpt.save, is_done, e) : 0;
}

static bool is_due(int64_t interval, int64_t iteration)
{
    return interval != MEG_UNSET && iteration % interval == 0;
}

static int stop_error(struct meg_trainer *t, struct meg_err *e)
{
    const struct meg_train_ckpt_conf *c = &t->job->ckpt;
    const bool has_step = c->ckpt_step != MEG_UNSET;

    return meg_fail(e, MEG_ESTOP,
                    "stopped by a signal; iteration %" PRId64 " is saved in %s; to resume, run the same command with "
                    "--load %s%s%s%s",
                    t->state.iteration, c->save, c->save, c->finetune || has_step ? ", without" : "",
                    c->finetune ? " --finetune" : "", has_step ? " --ckpt-step" : "");
}

/*
 * After an iteration other than the last one of the run, save a checkpoint if one is due or if the run ends now.  Set
 * *is_over if an exit condition ends the run; return MEG_ESTOP after a stop request.
 */
static int save_or_exit(struct meg_trainer *t, bool *is_over, struct meg_err *e)
{
    const struct meg_train_conf *c = &t->job->train;
    double minutes;
    const bool is_stop = meg_train_stop_requested(t, &minutes);
    int r;

    if ((r = meg_train_save_poll(t, false, MEG_SAVE_MAY_FAIL, e)) < 0)
        return r;
    if (t->state.iteration >= t->spec.train_iters)
        return 0;
    if (is_stop)
        return (r = save_and_wait(t, e)) < 0 ? r : stop_error(t, e);
    *is_over = minutes > c->exit_duration_min || is_due(c->exit_interval, t->state.iteration);
    if (!*is_over)
        return is_due(t->job->ckpt.save_interval, t->state.iteration) ? save_once(t, MEG_SAVE_MAY_FAIL, e) : 0;
    if ((r = finish_steps(t, 0, e)) < 0)
        return r;
    meg_info("exiting after iteration %" PRId64 " and %.1f minutes, as %s requires", t->state.iteration, minutes,
             minutes > c->exit_duration_min ? "--exit-duration-in-mins" : "--exit-interval");
    return save_and_wait(t, e);
}

/*
 * Save a checkpoint, as Megatron does, before a step with a new number of micro-batches.  *num_micro is the number of
 * micro-batches of the last step, or 0 before the first step of this process.  Set *num_micro to the number of the next
 * step.
 */
static int save_at_rampup(struct meg_trainer *t, int64_t *num_micro, struct meg_err *e)
{
    int64_t now = meg_batch_at(&t->spec.batch, t->state.consumed_train).num_micro, before = *num_micro;

    *num_micro = now;
    return before && now != before ? save_once(t, MEG_SAVE_MAY_FAIL, e) : 0;
}

/* Run a step and count the bytes that this rank sends during the step. */
static int measured_step(struct meg_trainer *t, struct meg_err *e)
{
    const int64_t num_micro = meg_batch_at(&t->spec.batch, t->state.consumed_train).num_micro;
    double before[MEG_COST_GROUPS], after[MEG_COST_GROUPS];
    int r;

    meg_cost_comm_volume_measured(before, &t->mesh);
    if ((r = meg_train_step(t, e)) < 0)
        return r;
    meg_cost_comm_volume_measured(after, &t->mesh);
    for (int i = 0; i < MEG_COST_GROUPS; i++)
        t->comm_bytes[i] = after[i] - before[i];
    t->comm_num_micro = num_micro;
    return 0;
}

static int train(struct meg_trainer *t, bool *is_over, struct meg_err *e)
{
    int64_t num_micro = 0;
    int r = 0;

    *is_over = false;
    while (t->state.iteration < t->spec.train_iters && !*is_over) {
        if ((r = save_at_rampup(t, &num_micro, e)) < 0 || (r = measured_step(t, e)) < 0)
            return r;
        /* log the earlier iterations before the check; if replicas of a weight differ, this iteration is not logged */
        if (is_due(t->job->train.weight_hash_interval, t->state.iteration) &&
            ((r = finish_steps(t, 1, e)) < 0 || (r = meg_weight_hash_check(t, e)) < 0))
            return r;
        if ((r = finish_steps(t, meg_train_max_queued_steps(t), e)) < 0)
            return r;
        if ((r = evaluate_during(t, e)) < 0 || (r = save_or_exit(t, is_over, e)) < 0)
            return r;
    }
    return finish_steps(t, 0, e);
}

int meg_train_loop(struct meg_trainer *t, struct meg_err *e)
{
    bool is_over = false;
    int r;

    if (t->job->train.skip_train)
        return evaluate_after(t, e);
    if (t->job->ckpt.save && (r = mark_done(t, false, e)) < 0)
        return r;
    if ((t->state.iteration == 0 && (r = evaluate_before(t, e)) < 0) || (r = train(t, &is_over, e)) < 0)
        return r;
    if ((t->job->ckpt.save && (r = save_and_wait(t, e)) < 0) || (r = meg_nan_check_end(t, e)) < 0 || is_over)
        return r;
    if (t->job->ckpt.save && (r = mark_done(t, true, e)) < 0)
        return r;
    if ((r = evaluate_after(t, e)) < 0)
        return r;
    return meg_train_stop_requested(t, NULL) ? stop_error(t, e) : 0;
}
