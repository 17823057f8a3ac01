/* One training iteration, and evaluation. */
#include <inttypes.h>
#include <math.h>
#include "base/clock.h"
#include "base/log.h"
#include "train/nan.h"
#include "train/trainer.h"
#include "watchdog/watchdog.h"

/*
 * Sum the loss *num over the data-, context- and pipeline-parallel ranks.  Sum the unmasked tokens *den over the data-
 * and context-parallel ranks only, because all stages count the same tokens.
 */
static void reduce_loss(const struct meg_trainer *t, double *num, double *den)
{
    double both[2] = { *num, *den };

    meg_host_all_reduce(t->mesh.dp_cp, both, 2, MEG_DTYPE_F64, MEG_REDUCE_SUM);
    meg_host_all_reduce(t->mesh.pp, both, 1, MEG_DTYPE_F64, MEG_REDUCE_SUM);
    *num = both[0];
    *den = both[1];
}

/*
 * Compute the gradients of a global batch.  By default each micro-batch has the same weight: its loss is divided by its
 * unmasked tokens and by the number of micro-batches.  With --calculate-per-token-loss each token has the same weight:
 * gradients are divided once by the number of all unmasked tokens.  *scale is the factor by which the caller must still
 * multiply the gradients.  *loss is the mean over tokens in both cases.
 */
static int forward_backward(struct meg_trainer *t, int64_t num_micro, double *loss, double *scale,
                            struct meg_nan_local *local, struct meg_err *e)
{
    double num, den;
    int r;

    meg_straggler_enter(&t->straggler, MEG_PHASE_BATCH);
    if ((r = meg_train_read_batches(t, t->train, num_micro, e)) < 0)
        return r;
    meg_optim_begin(t->optim, num_micro, meg_train_checks_nan(t));
    meg_straggler_enter(&t->straggler, MEG_PHASE_FORWARD_BACKWARD);
    if ((r = meg_train_run_pipeline(t, num_micro, true, &num, e)) < 0)
        return r;
    meg_straggler_enter(&t->straggler, MEG_PHASE_GRAD_REDUCE);
    den = t->batches.tokens;
    meg_optim_reduce_grads(t->optim);
    if (meg_train_checks_nan(t))
        meg_nan_check_local(t, num, local);
    reduce_loss(t, &num, &den);
    *scale = (t->job->train.calculate_per_token_loss && den > 0 ? 1 / den : 1) / t->scaler.scale;
    *loss = den > 0 ? num / den : 0;
    return 0;
}

double meg_train_decoupled_lr(const struct meg_trainer *t)
{
    const struct meg_optim_conf *o = &t->job->optim;
    const struct meg_lr_schedule *s = &t->lr_schedule;
    double max = isnan(o->decoupled_lr) ? s->max_lr : o->decoupled_lr;
    double min = isnan(o->decoupled_min_lr) ? s->min_lr : o->decoupled_min_lr;

    return meg_lr_at(s, max, min, t->state.lr_steps);
}

static void update(struct meg_trainer *t, double norm, struct meg_optim_rates *rates)
{
    rates->lr = meg_lr_at(&t->lr_schedule, t->lr_schedule.max_lr, t->lr_schedule.min_lr, t->state.lr_steps);
    rates->decoupled_lr = meg_train_decoupled_lr(t);
    rates->weight_decay = meg_wd_at(&t->lr_schedule, t->state.lr_steps);
    meg_optim_update(t->optim, rates, norm);
}

/*
 * With loss scaling, set *is_skipped if the gradient norm is not finite, and update a dynamic loss scale.
 * MEG_NAN_MAX_CONSECUTIVE consecutive overflows at the minimum of a dynamic loss scale end the run.
 */
static int check_overflow(struct meg_trainer *t, double norm, bool *is_skipped, struct meg_err *e)
{
    const struct meg_scaler *s = &t->scaler;
    const bool is_min_scale = s->type == MEG_SCALER_CONSTANT || s->scale <= s->min_scale;

    *is_skipped = meg_scaler_update(&t->scaler, !isfinite(norm));
    if (!*is_skipped)
        return 0;
    if (is_min_scale && s->type == MEG_SCALER_DYNAMIC && ++t->num_consecutive_nan == MEG_NAN_MAX_CONSECUTIVE)
        return meg_train_fail_on_rank0(
            t, meg_fail(e, MEG_EFAIL,
                        "iteration %" PRId64
                        ": a gradient is not finite at the minimum loss scale, %g, for the %dth iteration "
                        "in a row; try a lower --lr, --clip-grad or --min-loss-scale",
                        t->state.iteration + 1, s->scale, MEG_NAN_MAX_CONSECUTIVE));
    if (is_min_scale && meg_train_is_rank0(t))
        meg_warn("iteration %" PRId64 ": a gradient is not finite at the %s loss scale, %g; the iteration is skipped",
                 t->state.iteration + 1, s->type == MEG_SCALER_CONSTANT ? "constant" : "minimum", s->scale);
    meg_optim_zero_grad(t->optim);
    return 0;
}

int meg_train_step(struct meg_trainer *t, struct meg_step_result *out, struct meg_err *e)
{
    const struct meg_train_job *job = t->job;
    const struct meg_optim_conf *o = &job->optim;
    struct meg_step_result s = { .num_zeros = -1, .grad_norm = NAN, .params_norm = NAN };
    struct meg_optim_rates rates;
    struct meg_nan_local local;
    double start_s = meg_now_s();
    int r;

    meg_watchdog_set_step(t->mesh.world->watchdog, t->state.iteration + 1);
    s.batch = meg_batch_at(&t->spec.batch, t->state.consumed_train);
    if ((r = forward_backward(t, s.batch.num_micro, &s.lm_loss, &rates.grad_scale, &local, e)) < 0)
        return r;
    meg_straggler_enter(&t->straggler, MEG_PHASE_OPTIMIZER);
    if (o->clip_grad > 0 || job->train.check_for_nan || t->scaler.type)
        s.grad_norm = meg_optim_grad_norm(t->optim, rates.grad_scale);
    s.is_skipped = meg_train_checks_nan(t) && !(isfinite(s.lm_loss) && isfinite(s.grad_norm));
    if (s.is_skipped && (r = meg_nan_handle(t, &local, e)) < 0)
        return r;
    if (!s.is_skipped && (r = check_overflow(t, s.grad_norm, &s.is_skipped, e)) < 0)
        return r;
    if (job->log.log_num_zeros)
        s.num_zeros = meg_optim_num_zeros(t->optim);

    if (!s.is_skipped) {
        t->num_consecutive_nan = 0;
        update(t, s.grad_norm, &rates);
        t->state.lr_steps += s.batch.effective;
    }
    if (!(o->clip_grad > 0) || s.is_skipped)
        s.grad_norm = NAN; /* Megatron logs no gradient norm in this case, either */
    if (job->log.log_params_norm)
        s.params_norm = meg_optim_params_norm(t->optim);
    meg_straggler_end_step(&t->straggler);
    t->state.iteration++;
    t->state.consumed_train += s.batch.effective;
    t->state.skipped_samples += s.batch.global - s.batch.effective;
    s.seconds = meg_now_s() - start_s;
    *out = s;
    return 0;
}

int meg_train_evaluate(struct meg_trainer *t, struct meg_data_loader *l, const char *split, double *loss,
                       struct meg_err *e)
{
    const int64_t num_micro = meg_batch_max_microbatches(&t->spec.batch), total = t->job->train.eval_iters;
    double num = 0, den = 0;
    int r;

    *loss = NAN;
    for (int64_t i = 0; i < total; i++) {
        double sum;

        if (meg_train_stop_requested(t))
            return 0;
        if ((r = meg_train_read_batches(t, l, num_micro, e)) < 0 ||
            (r = meg_train_run_pipeline(t, num_micro, false, &sum, e)) < 0)
            return r;
        num += sum;
        den += t->batches.tokens;
        if (meg_train_is_rank0(t))
            meg_logger_eval_progress(t->logger, split, i, total);
    }
    reduce_loss(t, &num, &den);
    *loss = num / den;
    return 0;
}
