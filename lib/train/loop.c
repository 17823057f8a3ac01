#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/log.h"
#include "file/file.h"
#include "train/internal.h"
#include "train/weight_hash_check.h"

/* Iterations since the last log line. */
struct tally {
    int64_t n, nan, left_out;
    double loss, seconds, tokens, flops;
};

/* ---- evaluation ---- */

/* End the run on a loss that is not finite, unless the settings have it go on; all ranks have the same loss. */
static int check_evaluation(const struct trainer *t, const char *split, double loss, struct meg_err *e)
{
    const struct meg_train_conf *c = &t->job->train;

    if (isfinite(loss) || !c->check_for_nan || !strcmp(c->on_nan, "skip"))
        return 0;
    return meg_train_fail_on_rank0(t, meg_fail(e, MEG_EFAIL,
                                               "iteration %" PRId64 ": the lm loss of the %s split is %s; check the "
                                               "weights for NaN or Inf, or go on with --on-nan skip",
                                               t->at.iteration, split, isnan(loss) ? "nan" : "inf"));
}

static int evaluate(struct trainer *t, struct meg_data_loader *l, int split, bool is_last, struct meg_err *e)
{
    double loss;
    int r;

    if ((r = meg_train_evaluate(t, l, meg_split_names[split], &loss, e)) < 0)
        return r;
    if (meg_train_stop_requested(t))
        return 0;
    if (meg_train_is_rank0(t))
        meg_logger_evaluation(t->report, meg_split_names[split], is_last, t->at.iteration, t->at.consumed_train, loss);
    return check_evaluation(t, meg_split_names[split], loss, e);
}

/*
 * Before the first step, so that there is something to compare with.  The samples are those of the
 * first evaluation during training, which this one leaves where they are.
 */
static int evaluate_before(struct trainer *t, struct meg_err *e)
{
    struct meg_data_loader *l = NULL;
    int r;

    if ((r = meg_train_open_loader(t, &l, MEG_SPLIT_VALID, 0, e)) == 0 && l)
        r = evaluate(t, l, MEG_SPLIT_VALID, false, e);
    meg_data_loader_close(l);
    return r;
}

static int evaluate_during(struct trainer *t, struct meg_err *e)
{
    const struct meg_batch_schedule *p = &t->plan;

    if (!t->valid || t->at.iteration % t->job->train.eval_interval)
        return 0;
    t->at.consumed_valid += /* what is saved from here on comes after this evaluation */
        t->job->train.eval_iters * (p->global / (p->micro * p->dp_size) * p->micro * p->dp_size);
    return evaluate(t, t->valid, MEG_SPLIT_VALID, false, e);
}

static int evaluate_after(struct trainer *t, struct meg_err *e)
{
    struct meg_data_loader *test = NULL;
    int r = 0;

    if (t->valid)
        r = evaluate(t, t->valid, MEG_SPLIT_VALID, true, e);
    if (r == 0 && (r = meg_train_open_loader(t, &test, MEG_SPLIT_TEST, 0, e)) == 0 && test)
        r = evaluate(t, test, MEG_SPLIT_TEST, true, e);
    meg_data_loader_close(test);
    return r;
}

/* ---- reports ---- */

static void report(struct trainer *t, struct tally *sum, const struct meg_step_result *s)
{
    const struct meg_train_job *job = t->job;
    struct meg_iteration_stats v = { 0 };
    double n;

    if (job->log.log_straggler && t->at.iteration % job->log.log_interval == 0)
        meg_straggler_report(&t->straggler, t->mesh->world, t->at.iteration);
    if (!meg_train_is_rank0(t))
        return;
    v.iteration = t->at.iteration;
    v.train_iters = t->iters;
    v.consumed_samples = t->at.consumed_train;
    v.skipped_samples = t->at.skipped;
    v.global_batch_size = s->batch.effective;
    v.lm_loss = s->lm_loss;
    v.learning_rate = meg_lr_at(&t->schedule, t->schedule.max_lr, t->schedule.min_lr, t->at.steps);
    v.decoupled_learning_rate = isnan(job->optim.decoupled_lr) ? NAN : meg_train_decoupled_lr(t);
    v.loss_scale = t->scaler.scale;
    v.grad_norm = s->grad_norm;
    v.num_zeros = s->num_zeros;
    v.params_norm = s->params_norm;
    v.num_skipped_iterations = s->is_left_out;
    v.num_nan_iterations = !isfinite(s->lm_loss);
    v.iteration_ms = s->seconds * 1e3;
    v.flops = meg_gpt_flops(&job->model, s->batch.effective, job->train.seq_length);
    v.ranks = t->mesh->world->size;
    v.tokens_per_s = (double)(s->batch.effective * job->train.seq_length) / s->seconds;
    meg_logger_step(t->report, &v);

    sum->n++;
    sum->nan += v.num_nan_iterations;
    sum->left_out += s->is_left_out;
    sum->loss += s->is_left_out ? 0 : s->lm_loss;
    sum->seconds += s->seconds;
    sum->tokens += (double)(s->batch.effective * job->train.seq_length);
    sum->flops += v.flops;
    if (t->at.iteration % job->log.log_interval)
        return;
    n = (double)sum->n;
    v.lm_loss = sum->loss / (n - (double)sum->left_out);
    v.num_skipped_iterations = sum->left_out;
    v.num_nan_iterations = sum->nan;
    v.iteration_ms = sum->seconds / n * 1e3;
    v.tokens_per_s = sum->tokens / sum->seconds;
    v.flops = sum->flops / n;
    *sum = (struct tally){ 0 };
    meg_logger_interval(t->report, &v);
}

static void warn_of_spike(const struct trainer *t, double *before, double loss)
{
    if (t->job->train.check_for_spiky_loss && *before > 0 && fabs(loss - *before) / *before >= 0.2)
        meg_warn("iteration %" PRId64 ": lm loss went from %.6g to %.6g in one step", t->at.iteration, *before, loss);
    *before = loss;
}

/* ---- saving and stopping ---- */

static int save_once(struct trainer *t, enum meg_save_failure failure, struct meg_err *e)
{
    return t->job->ckpt.save && t->saved != t->at.iteration ? meg_train_save(t, failure, e) : 0;
}

/* The last save of a run. */
static int save_and_wait(struct trainer *t, struct meg_err *e)
{
    int r = save_once(t, MEG_SAVE_MUST_NOT_FAIL, e);

    return r < 0 ? r : meg_train_save_poll(t, true, MEG_SAVE_MUST_NOT_FAIL, e);
}

static int mark_done(struct trainer *t, bool is_done, struct meg_err *e)
{
    return meg_train_is_rank0(t) ? meg_ckpt_mark_done(t->job->ckpt.save, is_done, e) : 0;
}

static bool divides(int64_t interval, int64_t iteration)
{
    return interval != MEG_UNSET && iteration % interval == 0;
}

static int stopped(struct trainer *t, struct meg_err *e)
{
    const char *dir = t->job->ckpt.save;

    return meg_fail(e, MEG_ESTOP,
                    "stopped by a signal; iteration %" PRId64 " is saved in %s, and with --load %s "
                    "the same command goes on from there",
                    t->at.iteration, dir, dir);
}

/* A checkpoint when one is due, and whether the run ends here though iterations are left. */
static int save_or_exit(struct trainer *t, bool *is_over, struct meg_err *e)
{
    const struct meg_train_conf *c = &t->job->train;
    double minutes = meg_train_max_over_ranks(t, (meg_now_s() - t->start_s) / 60);
    int r;

    if ((r = meg_train_save_poll(t, false, MEG_SAVE_MAY_FAIL, e)) < 0)
        return r;
    if (t->at.iteration >= t->iters)
        return 0;
    if (meg_train_stop_requested(t))
        return (r = save_and_wait(t, e)) < 0 ? r : stopped(t, e);
    *is_over = minutes > c->exit_duration_min || divides(c->exit_interval, t->at.iteration);
    if (*is_over)
        meg_info("exiting after iteration %" PRId64 " and %.1f minutes, as asked", t->at.iteration, minutes);
    if (*is_over)
        return save_and_wait(t, e);
    return divides(t->job->ckpt.save_interval, t->at.iteration) ? save_once(t, MEG_SAVE_MAY_FAIL, e) : 0;
}

/* One more checkpoint where the batch is about to grow, as Megatron has it. */
static int save_at_rampup(struct trainer *t, int64_t *num_micro, struct meg_err *e)
{
    int64_t now = meg_batch_at(&t->plan, t->at.consumed_train).num_micro, before = *num_micro;

    *num_micro = now;
    return before && now != before ? save_once(t, MEG_SAVE_MAY_FAIL, e) : 0;
}

static int train(struct trainer *t, bool *is_over, struct meg_err *e)
{
    struct tally sum = { 0 };
    double loss_before = 0;
    int64_t num_micro = 0;
    int r = 0;

    *is_over = false;
    while (t->at.iteration < t->iters && !*is_over) {
        struct meg_step_result s;

        if ((r = save_at_rampup(t, &num_micro, e)) < 0 || (r = meg_train_measured_step(t, &s, e)) < 0)
            return r;
        warn_of_spike(t, &loss_before, s.lm_loss);
        if (divides(t->job->train.replica_interval, t->at.iteration) && (r = meg_weight_hash_check(t, e)) < 0)
            return r;
        report(t, &sum, &s);
        if ((r = evaluate_during(t, e)) < 0 || (r = save_or_exit(t, is_over, e)) < 0)
            return r;
    }
    return 0;
}

int meg_train_loop(struct trainer *t, struct meg_err *e)
{
    bool is_over = false;
    int r;

    if (t->job->train.skip_train)
        return evaluate_after(t, e);
    if (t->job->ckpt.save && (r = mark_done(t, false, e)) < 0)
        return r;
    if ((t->at.iteration == 0 && (r = evaluate_before(t, e)) < 0) || (r = train(t, &is_over, e)) < 0 || is_over)
        return r;
    if (t->job->ckpt.save && ((r = save_and_wait(t, e)) < 0 || (r = mark_done(t, true, e)) < 0))
        return r;
    if ((r = evaluate_after(t, e)) < 0)
        return r;
    return meg_train_stop_requested(t) ? stopped(t, e) : 0;
}
