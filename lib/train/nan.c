#include "train/nan.h"
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <unistd.h>
#include "base/log.h"
#include "train/internal.h"

void meg_nan_check_local(const struct trainer *t, double loss, struct meg_nan_local *mine)
{
    mine->loss = loss;
    mine->row = meg_optim_nonfinite(t->optim);
}

/* The first rank that has something to tell; where only the sum went wrong, rank 0. */
static int first_failing_rank(const struct trainer *t, bool has)
{
    struct meg_comm *world = t->mesh->world;
    int32_t first = has ? world->size - world->rank : 0;

    meg_all_reduce(world, &first, 1, MEG_DTYPE_I32, MEG_REDUCE_MAX);
    return first ? world->size - first : 0;
}

static void describe(struct meg_err *e, const struct trainer *t, const struct meg_nan_local *mine, const char *outcome)
{
    const struct meg_comm *world = t->mesh->world;
    char host[64] = "?", where[120] = "", loss[80] = "", gradient[160] = "";

    gethostname(host, sizeof host - 1);
    if (world->size > 1)
        snprintf(where, sizeof where, "rank %d of %d on %s: ", world->rank, world->size, host);
    if (!isfinite(mine->loss))
        snprintf(loss, sizeof loss, "lm loss is %s", isnan(mine->loss) ? "nan" : "inf");
    if (mine->row)
        snprintf(gradient, sizeof gradient, "%sthe gradient of %s is not finite", *loss ? ", and " : "",
                 mine->row->name);
    if (!*loss && !*gradient)
        snprintf(loss, sizeof loss, "every loss and gradient is finite, and the sum of their squares is not");
    meg_fail(e, MEG_EFAIL, "%siteration %" PRId64 ": %s%s; %s", where, t->at.iteration + 1, loss, gradient, outcome);
}

int meg_nan_handle(struct trainer *t, const struct meg_nan_local *mine, struct meg_err *e)
{
    const char *way = t->job->train.on_nan;
    const bool tells = t->mesh->world->rank == first_failing_rank(t, !isfinite(mine->loss) || mine->row);
    struct meg_err message;
    char outcome[160] = "nothing of this iteration is kept; a lower --lr or --clip-grad may help";
    bool is_end = !strcmp(way, "abort");
    int r;

    if ((r = meg_train_save_poll(t, true, MEG_SAVE_MAY_FAIL, e)) < 0) /* what is being saved is of before */
        return r;
    if (!is_end && ++t->nan_in_a_row == MEG_NAN_MAX_CONSECUTIVE) {
        snprintf(outcome, sizeof outcome, "the %dth iteration in a row, and --on-nan %s leaves out no more",
                 MEG_NAN_MAX_CONSECUTIVE, way);
        is_end = true;
    } else if (!strcmp(way, "rollback") && t->saved < 0) {
        snprintf(outcome, sizeof outcome, "--on-nan rollback has no checkpoint in %s yet", t->job->ckpt.save);
        is_end = true;
    } else if (!is_end) {
        snprintf(outcome, sizeof outcome, "it is left out%s",
                 strcmp(way, "rollback") ? ""
                                         : ", and the state is again "
                                           "that of the newest checkpoint");
    }
    if (is_end) {
        if (!tells)
            meg_barrier(t->mesh->world); /* until that rank's meg_die */
        describe(e, t, mine, outcome);
        return MEG_EFAIL;
    }
    if (tells) {
        describe(&message, t, mine, outcome);
        meg_warn("%s", message.msg);
    }
    meg_optim_zero_grad(t->optim);
    return strcmp(way, "rollback") ? 0 : meg_train_roll_back(t, e);
}
