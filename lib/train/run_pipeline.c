/*
 * run_pipeline.c - run the micro-batches of a global batch through the pipeline schedule, even if the run has only one
 * stage.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "placement/placement.h"
#include "train/trainer.h"

/* ---- micro-batches -------------------------------------------------------------------------- */

void meg_train_batches_free(struct meg_train_batches *b, const struct meg_device *d)
{
    for (int64_t i = 0; i < b->cap; i++)
        meg_batch_free(&b->micro[i]);
    free(b->micro);
    if (b->factors)
        d->op->release_pinned(b->factors);
    memset(b, 0, sizeof *b);
}

/* Sum a loss mask of n tokens. */
static double count_unmasked(const float *mask, int64_t n)
{
    double sum = 0;

    for (int64_t i = 0; i < n; i++)
        sum += mask[i];
    return sum;
}

/*
 * Return the factors of the losses of a micro-batch.  By default, each micro-batch has the same weight in the
 * gradients.  With --calculate-per-token-loss, each token has the same weight.
 */
static struct meg_loss_factors loss_factors(const struct meg_trainer *t, const struct meg_batch *x,
                                            double num_micro_all)
{
    struct meg_loss_factors f = { { 0 }, { 0 } };

    for (int i = 0; i < meg_model_num_losses(t->model); i++) {
        const double n = (double)(meg_model_loss_is_per_sequence(t->model, i) ? x->b : x->num_unmasked);

        f.grad[i] = t->job->train.calculate_per_token_loss || n == 0 ? 1 : 1 / n / num_micro_all;
        f.sum[i] = meg_model_averages_batches(t->model) && n > 0 ? 1 / n : 1;
    }
    return f;
}

static int read_batches(struct meg_trainer *t, struct meg_data_loader *l, int64_t num_micro, struct meg_err *e)
{
    const double num_micro_all = (double)(num_micro * t->mesh.layout.dp);
    struct meg_train_batches *b = &t->batches;
    int r;

    if (num_micro > b->cap) {
        meg_train_batches_free(b, t->device);
        if (!(b->factors = t->device->op->alloc_pinned((size_t)num_micro * sizeof *b->factors)))
            return meg_fail(e, MEG_EFAIL,
                            "out of memory: cannot allocate pinned memory for %" PRId64 " micro-batches; use a smaller "
                            "--global-batch-size",
                            num_micro);
        b->cap = num_micro;
        b->micro = meg_new((size_t)num_micro * sizeof *b->micro);
    }
    b->loss_divisor = 0;
    for (int64_t i = 0; i < num_micro; i++) {
        struct meg_batch *x = &b->micro[i];

        if ((r = meg_data_loader_next(l, x, e)) < 0)
            return r;
        b->factors[i] = loss_factors(t, x, num_micro_all);
        b->loss_divisor += meg_model_averages_batches(t->model) ? 1 : count_unmasked(x->loss_mask, x->s * x->b);
    }
    return 0;
}

/*
 * If the previous step is still queued, keep its micro-batches, and reuse the memory of those of the step before it.
 * The result of that earlier step has been read, so the uploads of its micro-batches are complete.
 */
static void keep_queued_batches(struct meg_trainer *t)
{
    const struct meg_train_batches batches = t->batches;

    MEG_ASSERT_LE(t->num_queued, 1);
    if (t->num_queued == 0)
        return;
    t->batches = t->previous_batches;
    t->previous_batches = batches;
}

int meg_train_read_batches(struct meg_trainer *t, struct meg_data_loader *l, int64_t num_micro, struct meg_err *e)
{
    int32_t is_failed;
    int r;

    keep_queued_batches(t);
    r = read_batches(t, l, num_micro, e);
    is_failed = r < 0;
    meg_host_all_reduce(t->mesh.world, &is_failed, 1, MEG_DTYPE_I32, MEG_REDUCE_MAX);
    if (!is_failed)
        return 0;
    meg_train_save_before_error(t, r < 0 ? e : NULL);
    return meg_train_agree_or_exit(t, r);
}

/* ---- the schedule ------------------------------------------------------------------------------- */

/* List the tensors that pipeline stages exchange, and return their number. */
static int list_boundary_tensors(struct meg_trainer *t)
{
    struct meg_train_pipeline *p = &t->pipeline;
    struct meg_boundary_tensor x[MEG_BOUNDARY_TENSORS];
    const int n = meg_model_boundary(t->model, x);

    for (int i = 0; i < n; i++)
        p->tensor[i] = (struct meg_pipe_tensor){ x[i].n, x[i].dtype };
    if (!p->transferred)
        p->transferred = meg_new((size_t)(t->mesh.layout.pp * t->mesh.layout.vp) * sizeof *p->transferred);
    meg_model_transferred(t->model, p->transferred);
    return n;
}

/*
 * Create the schedule for num_micro micro-batches and its buffers, unless they exist.  Return MEG_EFAIL if device
 * memory is exhausted.
 */
static int set_up_schedule(struct meg_trainer *t, int64_t num_micro, bool is_forward_only, struct meg_err *e)
{
    struct meg_train_pipeline *p = &t->pipeline;
    struct meg_pipe_schedule_conf c = meg_run_spec_schedule(&t->spec, num_micro);
    size_t nbytes;
    int ntensors;

    if (p->schedule.n > 0 && p->schedule.conf.microbatches == num_micro &&
        p->schedule.conf.is_forward_only == is_forward_only)
        return 0;
    meg_pipe_free(&p->pipe);
    meg_pipe_schedule_free(&p->schedule);
    c.is_forward_only = is_forward_only;
    meg_pipe_schedule_make(&p->schedule, &c, (int)t->mesh.coords.pp);
    MEG_ASSERT_LE(p->schedule.slots, t->model->run.microbatch_slots);
    ntensors = list_boundary_tensors(t);
    nbytes = meg_pipe_nbytes(&p->schedule, p->tensor, ntensors);
    if (nbytes > p->memory_size) {
        t->device->op->release(p->memory);
        p->memory_size = 0;
        if (!(p->memory = t->device->op->alloc(nbytes)))
            return meg_fail(e, MEG_EFAIL,
                            "out of memory: the pipeline buffers require %.1f MiB; use a smaller --micro-batch-size",
                            (double)nbytes / 0x1p20);
        p->memory_size = nbytes;
        meg_placement_undefined(p->memory, nbytes);
    }
    p->pipe = (struct meg_pipe){ .schedule = &p->schedule,
                                 .pp = t->mesh.pp,
                                 .stream = t->device->compute,
                                 .tensor = p->tensor,
                                 .ntensors = ntensors,
                                 .transferred = p->transferred };
    meg_pipe_init(&p->pipe, p->memory);
    return 0;
}

void meg_train_pipeline_free(struct meg_trainer *t)
{
    struct meg_train_pipeline *p = &t->pipeline;

    meg_pipe_free(&p->pipe);
    meg_pipe_schedule_free(&p->schedule);
    free(p->transferred);
    if (p->memory)
        t->device->op->release(p->memory);
}

/* ---- the steps ------------------------------------------------------------------------------ */

static void forward(void *user, const struct meg_pipe_step *s)
{
    struct meg_trainer *t = user;

    meg_model_forward(t->model, s->chunk, s->slot, &t->batches.micro[s->microbatch], &t->batches.factors[s->microbatch],
                      s->x, s->y);
}

static void backward_input(void *user, const struct meg_pipe_step *s)
{
    struct meg_trainer *t = user;

    meg_model_backward(t->model, s->chunk, s->slot, s->dy, s->dx);
}

static void backward_weight(void *user, const struct meg_pipe_step *s)
{
    struct meg_trainer *t = user;

    meg_model_backward_weight(t->model, s->chunk, s->slot);
}

static void backward(void *user, const struct meg_pipe_step *s)
{
    struct meg_trainer *t = user;

    backward_input(user, s);
    if (t->model->run.defers_wgrad)
        backward_weight(user, s);
}

static void evaluate(void *user, const struct meg_pipe_step *s)
{
    struct meg_trainer *t = user;
    struct meg_batch x = t->batches.micro[s->microbatch];

    x.sample_id = NULL; /* disables dropout */
    meg_model_forward(t->model, s->chunk, s->slot, &x, &t->batches.factors[s->microbatch], s->x, s->y);
    if (meg_layout_is_last(&t->mesh.layout, t->mesh.coords.pp, s->chunk))
        meg_model_slot_loss(t->model, s->slot);
}

int meg_train_run_pipeline(struct meg_trainer *t, int64_t num_micro, bool is_training, struct meg_err *e)
{
    static const struct meg_pipe_ops train = { forward, backward, backward_input, backward_weight },
                                     eval = { .fwd = evaluate };
    int r;

    if ((r = set_up_schedule(t, num_micro, !is_training, e)) < 0)
        return r;
    meg_model_zero_loss(t->model);
    meg_pipe_run(&t->pipeline.pipe, is_training ? &train : &eval, t);
    return 0;
}
