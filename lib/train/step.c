#include <inttypes.h>
#include <math.h>
#include "base/clock.h"
#include "comm/board.h"
#include "train/internal.h"

static double unmasked(const struct meg_batch *b)
{
    double n = 0;

    for (int64_t i = 0; i < b->s * b->b; i++)
        n += b->loss_mask[i];
    return n;
}

/* The loader's batch as the model reads it; with_dropout: samples are numbered. */
static struct meg_gpt_batch model_batch(const struct meg_batch *b, bool with_dropout)
{
    struct meg_gpt_batch x = { 0 };

    x.s = b->s;
    x.b = b->b;
    x.tokens = b->tokens;
    x.labels = b->labels;
    x.position = b->position_ids;
    x.doc_start = b->doc_start;
    x.loss_mask = b->loss_mask;
    x.sample = with_dropout ? b->sample_id : NULL;
    return x;
}

/* Sums over the ranks that have their own tokens: of the loss and their number. */
static void add_up_loss(const struct trainer *t, double *num, double *den)
{
    double both[2] = { *num, *den };

    meg_all_reduce(t->mesh->dp_cp, both, 2, MEG_DTYPE_F64, MEG_SUM);
    *num = both[0];
    *den = both[1];
}

/*
 * Gradients of a global batch.  Each micro-batch weighs the same, its loss being divided by its own
 * unmasked tokens, and the sum over ranks by their number; with --calculate-per-token-loss it is
 * divided once by all tokens (either is *scale).  The reported loss is token weighted either way.
 */
static int gradients(struct trainer *t, int64_t num_micro, double *loss, double *scale,
                     struct meg_err *e)
{
    bool per_token = t->job->train.calculate_per_token_loss;
    double num = 0, den = 0;
    int r;

    for (int64_t i = 0; i < num_micro; i++) {
        struct meg_batch b;
        struct meg_gpt_batch x;
        double tokens;

        if ((r = meg_loader_next(t->train, &b, e)) < 0)
            return r;
        tokens = unmasked(&b);
        x = model_batch(&b, true);
        num += meg_gpt_grad(t->model, &x,
                            per_token || tokens == 0 ? 1 : 1 / tokens / (double)num_micro);
        den += tokens;
    }
    add_up_loss(t, &num, &den);
    meg_optim_add_up(t->optim);
    *scale = per_token && den > 0 ? 1 / den : 1 / (double)t->mesh->layout.dp;
    *loss = den > 0 ? num / den : 0;
    return 0;
}

/* A number that is not finite ends the run where it appears, before it reaches the weights. */
static int check_finite(struct trainer *t, const struct meg_step_result *s, struct meg_err *e)
{
    const struct meg_param *p;

    if (isfinite(s->lm_loss) && isfinite(s->grad_norm))
        return 0;
    p = meg_optim_nonfinite(t->optim);
    return meg_fail(e, MEG_EFAIL,
                    "iteration %" PRId64
                    ": lm loss is %g, and the gradient of %s is %s; nothing of this "
                    "iteration is kept; a lower --lr or --clip-grad may help",
                    t->at.iteration + 1, isnan(s->lm_loss) ? NAN : s->lm_loss,
                    p ? p->name : "every parameter", p ? "not finite" : "finite");
}

double meg_train_decoupled_lr(const struct trainer *t)
{
    const struct meg_optim_conf *o = &t->job->optim;
    const struct meg_schedule *s = &t->schedule;
    double max = isnan(o->decoupled_lr) ? s->max_lr : o->decoupled_lr;
    double min = isnan(o->decoupled_min_lr) ? s->min_lr : o->decoupled_min_lr;

    return meg_lr_at(s, max, min, t->at.steps);
}

int meg_train_step(struct trainer *t, struct meg_step_result *out, struct meg_err *e)
{
    const struct meg_train_job *job = t->job;
    const struct meg_optim_conf *o = &job->optim;
    struct meg_step_result s = { .num_zeros = -1, .grad_norm = NAN, .params_norm = NAN };
    struct meg_optim_rates rates;
    double start_s = meg_now_s();
    int r;

    meg_board_step(t->at.iteration + 1);
    s.batch = meg_batch_at(&t->plan, t->at.consumed_train);
    if ((r = gradients(t, s.batch.num_micro, &s.lm_loss, &rates.grad_scale, e)) < 0)
        return r;
    if (o->clip_grad > 0 || job->train.check_for_nan)
        s.grad_norm = meg_optim_grad_norm(t->optim, rates.grad_scale);
    if (job->train.check_for_nan && (r = check_finite(t, &s, e)) < 0)
        return meg_train_fail_once(t, r);
    if (job->log.log_num_zeros)
        s.num_zeros = meg_optim_num_zeros(t->optim);

    rates.lr = meg_lr_at(&t->schedule, t->schedule.max_lr, t->schedule.min_lr, t->at.steps);
    rates.decoupled_lr = meg_train_decoupled_lr(t);
    rates.weight_decay = meg_wd_at(&t->schedule, t->at.steps);
    meg_optim_update(t->optim, &rates, s.grad_norm);

    if (!(o->clip_grad > 0))
        s.grad_norm = NAN; /* Megatron takes none then, and logs none */
    if (job->log.log_params_norm)
        s.params_norm = meg_optim_params_norm(t->optim);
    t->at.iteration++;
    t->at.consumed_train += s.batch.run;
    t->at.skipped += s.batch.global - s.batch.run;
    t->at.steps += s.batch.run;
    s.seconds = meg_now_s() - start_s;
    *out = s;
    return 0;
}

int meg_train_evaluate(struct trainer *t, struct meg_loader *l, const char *split, double *loss,
                       struct meg_err *e)
{
    int64_t num_micro = t->plan.global / (t->plan.micro * t->plan.ranks),
            total = t->job->train.eval_iters * num_micro;
    double num = 0, den = 0;
    int r;

    *loss = NAN;
    for (int64_t i = 0; i < total; i++) {
        struct meg_batch b;
        struct meg_gpt_batch x;

        if (meg_train_stop_asked(t))
            return 0;
        if ((r = meg_loader_next(l, &b, e)) < 0)
            return r;
        x = model_batch(&b, false);
        num += meg_gpt_loss(t->model, &x, NULL);
        den += unmasked(&b);
        if (meg_train_speaks(t))
            meg_report_evaluating(t->report, split, i, total);
    }
    add_up_loss(t, &num, &den);
    *loss = num / den;
    return 0;
}
