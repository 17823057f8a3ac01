/* step.c - one training iteration, and evaluation. */
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include "base/clock.h"
#include "base/log.h"
#include "train/nan.h"
#include "train/trainer.h"
#include "watchdog/watchdog.h"

/*
 * Compute and reduce the gradients of a global batch, and sum the loss over ranks.  By default each micro-batch has the
 * same weight: its loss is divided by the number of its unmasked tokens, and by the total number of micro-batches on
 * the data-parallel ranks.  With --calculate-per-token-loss each token has the same weight: meg_optim_decide divides
 * the gradients once by the number of all unmasked tokens.
 */
static int forward_backward(struct meg_trainer *t, int64_t num_micro, struct meg_err *e)
{
    int r;

    meg_straggler_enter(&t->straggler, MEG_PHASE_BATCH);
    if ((r = meg_train_read_batches(t, t->train, num_micro, e)) < 0)
        return r;
    meg_optim_begin(t->optim, num_micro, meg_train_checks_nan(t));
    meg_straggler_enter(&t->straggler, MEG_PHASE_FORWARD_BACKWARD);
    if ((r = meg_train_run_pipeline(t, num_micro, true, e)) < 0)
        return r;
    meg_straggler_enter(&t->straggler, MEG_PHASE_GRAD_REDUCE);
    meg_optim_reduce_grads(t->optim);
    meg_optim_sum_losses(t->optim, t->batches.loss_divisor);
    return 0;
}

double meg_train_lr(const struct meg_trainer *t, int64_t lr_steps)
{
    return meg_lr_at(&t->lr_schedule, t->lr_schedule.max_lr, t->lr_schedule.min_lr, lr_steps);
}

double meg_train_decoupled_lr(const struct meg_trainer *t, int64_t lr_steps)
{
    const struct meg_optim_conf *o = &t->job->optim;
    const struct meg_lr_schedule *s = &t->lr_schedule;
    double max = isnan(o->decoupled_lr) ? s->max_lr : o->decoupled_lr;
    double min = isnan(o->decoupled_min_lr) ? s->min_lr : o->decoupled_min_lr;

    return meg_lr_at(s, max, min, lr_steps);
}

static struct meg_optim_rates rates_at(const struct meg_trainer *t, int64_t lr_steps)
{
    const struct meg_optim_rates r = { meg_train_lr(t, lr_steps), meg_train_decoupled_lr(t, lr_steps),
                                       meg_wd_at(&t->lr_schedule, lr_steps) };

    return r;
}

/* Queue the update of the parameters and the sums that are logged. */
static void queue_update(struct meg_trainer *t)
{
    const struct meg_train_job *job = t->job;
    const int64_t lr_steps = t->state.lr_steps;
    const struct meg_optim_step s = {
        .rates = { rates_at(t, lr_steps), rates_at(t, lr_steps + (t->num_queued ? t->queued[0].batch.effective : 0)) },
        .has_grad_norm = job->optim.clip_grad > 0 || job->train.check_for_nan || t->scaler.type != MEG_SCALER_NONE,
        .is_per_token = job->train.calculate_per_token_loss,
        .skips_nonfinite = meg_train_checks_nan(t),
    };

    meg_straggler_enter(&t->straggler, MEG_PHASE_OPTIMIZER);
    if (job->log.log_num_zeros)
        meg_optim_count_zeros(t->optim);
    meg_optim_decide(t->optim, &s);
    meg_optim_update(t->optim);
    if (job->log.log_params_norm)
        meg_optim_sum_params(t->optim);
    meg_optim_end(t->optim);
}

int meg_train_step(struct meg_trainer *t, struct meg_err *e)
{
    struct meg_queued_step q = { .batch = meg_batch_at(&t->spec.batch, t->state.consumed_train),
                                 .start_s = meg_now_s() };
    int r;

    MEG_ASSERT_LT(t->num_queued, MEG_MAX_QUEUED_STEPS);
    meg_watchdog_set_step(t->mesh.world->watchdog, t->state.iteration + 1);
    meg_device_set_step(t->state.iteration + 1);
    if ((r = forward_backward(t, q.batch.num_micro, e)) < 0)
        return r;
    queue_update(t);
    meg_straggler_end_step(&t->straggler);
    t->state.iteration++;
    t->state.consumed_train += q.batch.effective;
    t->state.skipped_samples += q.batch.global - q.batch.effective;
    q.state = t->state;
    t->queued[t->num_queued++] = q;
    return 0;
}

int meg_train_max_queued_steps(const struct meg_trainer *t)
{
    return t->device->op->is_host_memory || t->job->train.on_nan == MEG_ON_NAN_ROLLBACK ? 0 : 1;
}

/*
 * Handle a step that was skipped because a gradient overflowed at the loss scale `before`.  Warn if the scale was
 * constant or at its minimum.  MEG_NAN_MAX_CONSECUTIVE consecutive overflows at the minimum of a dynamic scale end the
 * run.
 */
static int handle_overflow(struct meg_trainer *t, const struct meg_scaler *before, int64_t iteration, struct meg_err *e)
{
    const bool is_constant = before->type == MEG_SCALER_CONSTANT;

    if (!is_constant && before->scale > before->min_scale)
        return 0;
    if (!is_constant && ++t->num_consecutive_nan == MEG_NAN_MAX_CONSECUTIVE)
        return meg_train_fail_on_rank0(
            t, meg_fail(e, MEG_EFAIL,
                        "iteration %" PRId64
                        ": a gradient is not finite at the minimum loss scale, %g, for the %dth iteration "
                        "in a row; try a lower --lr, --clip-grad or --min-loss-scale",
                        iteration, t->scaler.scale, MEG_NAN_MAX_CONSECUTIVE));
    if (meg_train_is_rank0(t))
        meg_warn("iteration %" PRId64 ": a gradient is not finite at the %s loss scale, %g; the iteration is skipped",
                 iteration, is_constant ? "constant" : "minimum", t->scaler.scale);
    return 0;
}

/* Advance the schedules if the step updated the parameters; otherwise handle the skipped step. */
static int apply_record(struct meg_trainer *t, const struct meg_queued_step *q, const struct meg_step_record *record,
                        struct meg_err *e)
{
    const struct meg_scaler before = t->scaler;

    t->scaler = record->scaler;
    if (record->is_skipped)
        return meg_train_checks_nan(t) ? meg_nan_handle(t, q->state.iteration, record, e)
                                       : handle_overflow(t, &before, q->state.iteration, e);
    t->num_consecutive_nan = 0;
    t->state.lr_steps += q->batch.effective;
    return 0;
}

int meg_train_step_result(struct meg_trainer *t, struct meg_step_result *out, struct meg_err *e)
{
    const struct meg_train_job *job = t->job;
    const struct meg_queued_step q = t->queued[0];
    const struct meg_step_record *record = meg_optim_result(t->optim);
    const bool is_skipped = record->is_skipped;
    double now;
    int r;

    t->num_queued--;
    t->num_results++;
    memmove(t->queued, t->queued + 1, (size_t)t->num_queued * sizeof *t->queued);
    if ((r = apply_record(t, &q, record, e)) < 0)
        return r;
    *out = (struct meg_step_result){
        .batch = q.batch,
        .state = q.state,
        /* like Megatron, log no gradient norm and no zero count of a skipped step, and no norm without clipping */
        .grad_norm = job->optim.clip_grad > 0 && !is_skipped ? record->grad_norm : NAN,
        .num_zeros = job->log.log_num_zeros && !is_skipped ? record->sums.num_zeros : -1,
        .params_norm = job->log.log_params_norm ? sqrt(record->sums.param_sumsq) : NAN,
        .is_skipped = is_skipped,
    };
    memcpy(out->loss, record->loss, sizeof out->loss);
    out->state.lr_steps = t->state.lr_steps;
    now = meg_now_s();
    out->seconds = now - fmax(q.start_s, t->last_result_s);
    t->last_result_s = now;
    return 0;
}

struct meg_named_losses meg_train_named_losses(const struct meg_trainer *t, const double *loss)
{
    struct meg_named_losses out = { .n = meg_model_num_losses(t->model) };

    for (int i = 0; i < out.n; i++) {
        out.name[i] = meg_model_loss_name(t->model, i);
        out.value[i] = loss[i];
    }
    return out;
}

/* Add the loss sums of the last run of the pipeline to sum [MEG_MAX_LOSSES]. */
static void add_losses(struct meg_model *g, double *sum)
{
    double loss[MEG_MAX_LOSSES];

    meg_model_read_losses(g, loss);
    for (int i = 0; i < MEG_MAX_LOSSES; i++)
        sum[i] += loss[i];
}

int meg_train_evaluate(struct meg_trainer *t, struct meg_data_loader *l, const char *split, double *loss,
                       struct meg_err *e)
{
    const int64_t num_micro = meg_batch_max_microbatches(&t->spec.batch), total = t->job->train.eval_iters;
    double sum[MEG_MAX_LOSSES + 1] = { 0 }, *divisor = sum + MEG_MAX_LOSSES;
    int r;

    for (int k = 0; k < MEG_MAX_LOSSES; k++)
        loss[k] = NAN;
    for (int64_t i = 0; i < total; i++) {
        if (meg_train_stop_requested(t, NULL))
            return 0;
        if ((r = meg_train_read_batches(t, l, num_micro, e)) < 0 ||
            (r = meg_train_run_pipeline(t, num_micro, false, e)) < 0)
            return r;
        add_losses(t->model, sum);
        *divisor += t->batches.loss_divisor;
        if (meg_train_is_rank0(t))
            meg_logger_eval_progress(t->logger, split, i, total);
    }
    meg_host_all_reduce(t->mesh.dp_cp, sum, MEG_MAX_LOSSES + 1, MEG_DTYPE_F64, MEG_REDUCE_SUM);
    /* all stages have the same divisor */
    meg_host_all_reduce(t->mesh.pp, sum, MEG_MAX_LOSSES, MEG_DTYPE_F64, MEG_REDUCE_SUM);
    for (int k = 0; k < MEG_MAX_LOSSES; k++)
        loss[k] = sum[k] / *divisor;
    return 0;
}
