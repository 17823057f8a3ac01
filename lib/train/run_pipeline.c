/*
 * A global batch through the stages: the micro-batches are read, and the list of the pipeline schedule
 * is walked over them.  One stage has a list, too.
 */
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "train/internal.h"

/* ---- micro-batches -------------------------------------------------------------------------- */

void meg_train_batches_free(struct meg_train_batches *b)
{
    for (int64_t i = 0; i < b->cap; i++)
        meg_batch_free(&b->micro[i]);
    free(b->micro);
    free(b->scale);
    memset(b, 0, sizeof *b);
}

static double unmasked(const float *mask, int64_t n)
{
    double sum = 0;

    for (int64_t i = 0; i < n; i++)
        sum += mask[i];
    return sum;
}

size_t meg_train_micro_batch_nbytes(const struct trainer *t)
{
    const size_t n = (size_t)(t->plan.micro * t->job->train.seq_length);

    return n * (4 * sizeof(int32_t) + sizeof(float)) + (size_t)t->plan.micro * sizeof(int64_t) + 6 * 8;
}

static int read_batches(struct trainer *t, struct meg_data_loader *l, int64_t num_micro, struct meg_err *e)
{
    const double all = (double)(num_micro * t->mesh->layout.dp);
    struct meg_train_batches *b = &t->batches;
    int r;

    if (num_micro > b->cap) {
        meg_train_batches_free(b);
        b->cap = num_micro;
        b->micro = meg_new((size_t)num_micro * sizeof *b->micro);
        b->scale = meg_new((size_t)num_micro * sizeof *b->scale);
    }
    b->tokens = 0;
    for (int64_t i = 0; i < num_micro; i++) {
        struct meg_batch *x = &b->micro[i];
        double tokens;

        if ((r = meg_data_loader_next(l, x, e)) < 0)
            return r;
        tokens = (double)x->num_unmasked;
        b->scale[i] = t->job->train.calculate_per_token_loss || tokens == 0 ? 1 : 1 / tokens / all;
        b->tokens += unmasked(x->loss_mask, x->s * x->b);
    }
    return 0;
}

int meg_train_read_batches(struct trainer *t, struct meg_data_loader *l, int64_t num_micro, struct meg_err *e)
{
    const int r = read_batches(t, l, num_micro, e);
    int32_t is_failed = r < 0;

    meg_all_reduce(t->mesh->world, &is_failed, 1, MEG_DTYPE_I32, MEG_REDUCE_MAX);
    if (!is_failed)
        return 0;
    meg_train_save_before_error(t, r < 0 ? e : NULL);
    return meg_train_agree_or_exit(t, r);
}

/* ---- the list ------------------------------------------------------------------------------- */

struct meg_pipe_schedule_conf meg_train_pipeline_schedule(const struct meg_train_job *job, const struct meg_layout *l,
                                                          int64_t num_micro)
{
    const int64_t group = job->layout.group_size;
    struct meg_pipe_schedule_conf c = { .name = job->layout.schedule,
                                        .stages = (int)l->pp,
                                        .chunks = (int)l->vp,
                                        .microbatches = num_micro,
                                        .group = group == MEG_UNSET ? 0 : group };
    return c;
}

/* What stages send each other: rows of the residual stream. */
static struct meg_pipe_tensor boundary(const struct meg_gpt *g)
{
    const enum meg_dtype type = g->run.residual_dtype;
    const struct meg_pipe_tensor x = { (int64_t)(meg_gpt_boundary_nbytes(g) / meg_dtype_size(type)), type };

    return x;
}

/* Have the list of so many micro-batches, and its buffers. */
static int prepare(struct trainer *t, int64_t num_micro, bool is_forward_only, struct meg_err *e)
{
    struct meg_train_pipeline *w = &t->walk;
    struct meg_pipe_schedule_conf c = meg_train_pipeline_schedule(t->job, &t->mesh->layout, num_micro);
    size_t nbytes;
    int r;

    if (w->list.n > 0 && w->list.conf.microbatches == num_micro && w->list.conf.is_forward_only == is_forward_only)
        return 0;
    meg_pipe_free(&w->pipe);
    meg_pipe_schedule_free(&w->list);
    c.is_forward_only = is_forward_only;
    meg_pipe_schedule_make(&w->list, &c, (int)t->mesh->at.pp);
    MEG_ASSERT_LE(w->list.slots, t->model->run.microbatch_slots);
    w->tensor = boundary(t->model);
    nbytes = meg_pipe_nbytes(&w->list, &w->tensor, 1);
    if (nbytes > w->arena.cap) {
        meg_arena_free(&w->arena);
        if ((r = meg_arena_init(&w->arena, "pipeline", nbytes, e)) < 0)
            return r;
    }
    meg_arena_rewind(&w->arena, 0);
    meg_pipe_init(&w->pipe, &w->list, t->mesh->pp, &w->tensor, 1, &w->arena);
    return 0;
}

void meg_train_pipeline_free(struct meg_train_pipeline *w)
{
    meg_pipe_free(&w->pipe);
    meg_pipe_schedule_free(&w->list);
    meg_arena_free(&w->arena);
}

/* ---- its steps ------------------------------------------------------------------------------ */

static void *only(void *const *tensor)
{
    return tensor ? tensor[0] : NULL;
}

static void forward(void *user, const struct meg_pipe_step *s)
{
    struct trainer *t = user;

    meg_gpt_forward(t->model, s->chunk, s->slot, &t->batches.micro[s->microbatch],
                    t->batches.scale[s->microbatch] * t->scaler.scale, only(s->x), only(s->y));
}

static void backward_input(void *user, const struct meg_pipe_step *s)
{
    struct trainer *t = user;

    t->walk.loss += meg_gpt_backward(t->model, s->chunk, s->slot, only(s->dy), only(s->dx));
}

static void backward_weight(void *user, const struct meg_pipe_step *s)
{
    struct trainer *t = user;

    meg_gpt_backward_weight(t->model, s->chunk, s->slot);
}

static void backward(void *user, const struct meg_pipe_step *s)
{
    struct trainer *t = user;

    backward_input(user, s);
    if (t->model->run.defers_wgrad)
        backward_weight(user, s);
}

static void evaluate(void *user, const struct meg_pipe_step *s)
{
    struct trainer *t = user;
    struct meg_batch x = t->batches.micro[s->microbatch];

    x.sample_id = NULL; /* no dropout */
    meg_gpt_forward(t->model, s->chunk, s->slot, &x, 1, only(s->x), only(s->y));
    if (meg_layout_is_last(&t->mesh->layout, t->mesh->at.pp, s->chunk))
        t->walk.loss += meg_gpt_slot_loss(t->model, s->slot, NULL);
}

int meg_train_run_pipeline(struct trainer *t, int64_t num_micro, bool is_training, double *loss, struct meg_err *e)
{
    static const struct meg_pipe_ops train = { forward, backward, backward_input, backward_weight },
                                     eval = { .fwd = evaluate };
    int r;

    if ((r = prepare(t, num_micro, !is_training, e)) < 0)
        return r;
    t->walk.loss = 0;
    meg_pipe_run(&t->walk.pipe, is_training ? &train : &eval, t);
    *loss = t->walk.loss;
    return 0;
}
