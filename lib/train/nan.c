/*
 * nan.c - handle losses and gradients that are not finite: find the rank where they arose, and end the run, skip the
 * iteration or roll back.
 */
#include "train/nan.h"
#include <inttypes.h>
#include <math.h>
#include <unistd.h>
#include "base/log.h"
#include "train/trainer.h"

/* Return the lowest rank with a local loss or gradient that is not finite; 0 if only a sum over ranks overflowed. */
static int first_failing_rank(const struct meg_trainer *t, bool is_failing)
{
    struct meg_comm *world = t->mesh.world;
    int32_t first = is_failing ? world->size - world->rank : 0;

    meg_host_all_reduce(world, &first, 1, MEG_DTYPE_I32, MEG_REDUCE_MAX);
    return first ? world->size - first : 0;
}

static void describe(struct meg_err *e, const struct meg_trainer *t, int64_t iteration,
                     const struct meg_step_record *record, const char *action)
{
    const double *local_loss = record->sums.local_loss;
    const int bad = isfinite(local_loss[0]) ? 1 : 0; /* index of a loss that is not finite, if there is one */
    const struct meg_comm *world = t->mesh.world;
    char host[64] = "?", where[120] = "", loss[80] = "", gradient[160] = "";

    gethostname(host, sizeof host - 1);
    if (world->size > 1)
        snprintf(where, sizeof where, "rank %d of %d on %s: ", world->rank, world->size, host);
    if (!meg_all_finite(local_loss))
        snprintf(loss, sizeof loss, "%s is %s", meg_model_loss_name(t->model, bad),
                 isnan(local_loss[bad]) ? "nan" : "inf");
    if (record->nonfinite_param)
        snprintf(gradient, sizeof gradient, "%sthe gradient of %s is not finite", *loss ? ", and " : "",
                 t->optim->params->row[record->nonfinite_param - 1].name);
    if (!*loss && !*gradient)
        snprintf(loss, sizeof loss, "the loss and gradients are finite, but the sum of squared gradients is not");
    meg_fail(e, MEG_EFAIL, "%siteration %" PRId64 ": %s%s; %s", where, iteration, loss, gradient, action);
}

/* Apply --on-nan to this iteration and describe the decision in the string `action`.  Return whether the run ends. */
static bool decide(struct meg_trainer *t, char *action, size_t size)
{
    const struct meg_train_conf *c = &t->job->train;

    if (c->on_nan == MEG_ON_NAN_ABORT) {
        snprintf(action, size, "this iteration is discarded; try a lower --lr or --clip-grad");
        return true;
    }
    if (++t->num_consecutive_nan == MEG_NAN_MAX_CONSECUTIVE) {
        snprintf(action, size, "this is the %dth such iteration in a row, the limit of --on-nan %s",
                 MEG_NAN_MAX_CONSECUTIVE, meg_opt_choice(meg_train_opts, "on-nan", c));
        return true;
    }
    if (c->on_nan == MEG_ON_NAN_ROLLBACK && t->last_saved < 0) {
        snprintf(action, size, "--on-nan rollback: there is no checkpoint in %s yet", t->job->ckpt.save);
        return true;
    }
    snprintf(action, size, "the iteration is skipped%s",
             c->on_nan == MEG_ON_NAN_ROLLBACK ? ", and the newest checkpoint is loaded" : "");
    return false;
}

int meg_nan_handle(struct meg_trainer *t, int64_t iteration, const struct meg_step_record *record, struct meg_err *e)
{
    const bool is_failing = !meg_all_finite(record->sums.local_loss) || record->nonfinite_param;
    const bool is_first = t->mesh.world->rank == first_failing_rank(t, is_failing);
    struct meg_err message;
    char action[160];
    bool is_end;
    int r;

    /* finish the save in progress: the run may end here, or a rollback may load this checkpoint */
    if ((r = meg_train_save_poll(t, true, MEG_SAVE_MAY_FAIL, e)) < 0)
        return r;
    is_end = decide(t, action, sizeof action);
    if (is_end && !is_first)
        meg_host_barrier(t->mesh.world); /* blocks until the first rank's meg_die ends this process */
    if (is_first || is_end)
        describe(is_end ? e : &message, t, iteration, record, action);
    if (is_end)
        return MEG_EFAIL;
    if (is_first)
        meg_warn("%s", message.msg);
    return t->job->train.on_nan == MEG_ON_NAN_ROLLBACK ? meg_train_roll_back(t, e) : 0;
}

int meg_nan_check_end(const struct meg_trainer *t, struct meg_err *e)
{
    if (t->num_consecutive_nan == 0 || 2 * t->num_consecutive_nan < t->num_results)
        return 0;
    return meg_train_fail_on_rank0(
        t, meg_fail(e, MEG_EFAIL,
                    "the last %" PRId64 " of %" PRId64
                    " iterations were skipped because a loss or gradient is not finite; check the data, or try a lower "
                    "--lr or --clip-grad",
                    t->num_consecutive_nan, t->num_results));
}
