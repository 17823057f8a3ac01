/*
 * queue_comm.c - communicators of the queue device.  A tensor collective is queued work.  It starts after the work that
 * is queued on the caller's stream, and runs on a stream of the communicator.  Its wait makes a stream wait for an
 * event.  The collectives of a communicator run in order, as do the messages of each direction between two ranks.
 *
 * A host collective runs queued work while it waits, since other ranks may wait for this rank's tensor collectives.
 */
#include <sched.h>
#include <stdlib.h>
#include "base/mem.h"
#include "queue.h"

struct queue_comm {
    struct meg_comm c;
    struct meg_comm *base;
    struct meg_stream *collectives;
    struct meg_stream **send, **recv; /* [size] created at their first use */
};

struct meg_work {
    const struct queue_comm *q;
    struct meg_event *done; /* tensor collective: recorded after it */
    struct meg_work *base;  /* host collective: work of the base communicator, or NULL */
};

struct op_args {
    struct queue_comm *q;
    struct meg_comm_call call;
    bool is_started;
    struct meg_work *work;
};

static struct queue_comm *queue_comm_of(struct meg_comm *c)
{
    return (struct queue_comm *)c;
}

static struct meg_work *start_base(const struct op_args *a)
{
    struct meg_comm *c = a->q->base;

    c->watchdog = a->q->c.watchdog;
    return c->op->start(c, NULL, &a->call);
}

static bool run_op(void *args)
{
    struct op_args *a = args;

    if (!a->is_started) {
        a->work = start_base(a);
        a->is_started = true;
    }
    return !a->work || a->q->base->op->test(a->work);
}

/* ---- tensor collectives ---- */

/* The bytes that this rank sends are counted when the collective is queued, as over NCCL. */
static struct meg_work *queue_op(struct queue_comm *q, struct meg_stream *after, struct meg_stream *on,
                                 const struct op_args *a)
{
    const struct meg_ops *op = queue_device()->op;
    struct meg_work *w = meg_new(sizeof *w);

    w->q = q;
    q->c.nbytes_sent += meg_comm_volume(&a->call, q->c.size);
    w->done = op->event_create();
    op->event_record(after, w->done);
    op->event_wait(on, w->done);
    queue_push(on, run_op, a, sizeof *a);
    op->event_record(on, w->done);
    return w;
}

static struct meg_work *start(struct meg_comm *c, struct meg_stream *st, const struct meg_comm_call *x)
{
    struct queue_comm *q = queue_comm_of(c);
    struct meg_stream **on = x->op == MEG_SEND   ? &q->send[x->peer]
                             : x->op == MEG_RECV ? &q->recv[x->peer]
                                                 : &q->collectives;

    if (!*on)
        *on = queue_stream_create("message");
    return queue_op(q, st, *on, &(struct op_args){ .q = q, .call = *x });
}

static void wait_on_stream(struct meg_work *w, struct meg_stream *st)
{
    const struct meg_ops *op = queue_device()->op;

    op->event_wait(st, w->done);
    op->event_destroy(w->done);
    free(w);
}

/* Return false even if the collective is complete, so that the caller calls wait, which orders streams by the event. */
static bool is_complete(struct meg_work *w)
{
    (void)w;
    queue_progress();
    return false;
}

/* ---- host collectives ---- */

static struct meg_work *host_start(struct meg_comm *c, struct meg_stream *st, const struct meg_comm_call *x)
{
    struct meg_work *w = meg_new(sizeof *w);
    const struct op_args a = { .q = queue_comm_of(c), .call = *x };

    (void)st;
    w->q = a.q;
    queue_unlock_memory();
    w->base = start_base(&a);
    queue_lock_memory();
    return w;
}

static bool host_test(struct meg_work *w)
{
    bool is_done;

    queue_progress();
    queue_unlock_memory();
    is_done = !w->base || w->q->base->op->test(w->base);
    queue_lock_memory();
    if (is_done)
        free(w);
    return is_done;
}

static void host_wait(struct meg_work *w, struct meg_stream *st)
{
    (void)st;
    queue_unlock_memory();
    while (!host_test(w))
        sched_yield();
    queue_lock_memory();
}

/* ---- groups ---- */

static struct meg_comm *wrap(struct meg_comm *base);

static struct meg_comm *split(struct meg_comm *c, int color, const char *name)
{
    struct meg_comm *base = queue_comm_of(c)->base, *group;

    queue_unlock_memory();
    group = base->op->split(base, color, name);
    queue_lock_memory();
    return wrap(group);
}

static void set_timeout(struct meg_comm *c, double seconds)
{
    meg_comm_set_timeout(queue_comm_of(c)->base, seconds);
}

static void close_comm(struct meg_comm *c)
{
    struct queue_comm *q = queue_comm_of(c);

    queue_stream_destroy(q->collectives);
    for (int i = 0; i < c->size; i++) {
        queue_stream_destroy(q->send[i]);
        queue_stream_destroy(q->recv[i]);
    }
    queue_unlock_memory();
    meg_comm_close(q->base);
    queue_lock_memory();
    free(q->send);
    free(q->recv);
    free(q);
}

static const struct meg_comm_ops tensor_ops = {
    .start = start,
    .wait = wait_on_stream,
    .test = is_complete,
    .split = split,
    .set_timeout = set_timeout,
    .close = close_comm,
};

static const struct meg_comm_ops host_ops = {
    .start = host_start,
    .wait = host_wait,
    .test = host_test,
};

static struct meg_comm *wrap(struct meg_comm *base)
{
    struct queue_comm *q = meg_new(sizeof *q);

    q->c = *base;
    q->c.op = &tensor_ops;
    q->c.host = &host_ops;
    q->base = base;
    q->collectives = queue_stream_create(base->name);
    q->send = meg_new((size_t)base->size * sizeof(struct meg_stream *));
    q->recv = meg_new((size_t)base->size * sizeof(struct meg_stream *));
    return &q->c;
}

/* The linker redirects calls of functions of lib/comm to the functions __wrap_* (--wrap). */
int __real_meg_comm_open(struct meg_comm_world *w, struct meg_err *e);
int __wrap_meg_comm_open(struct meg_comm_world *w, struct meg_err *e);

int __wrap_meg_comm_open(struct meg_comm_world *w, struct meg_err *e)
{
    const int r = __real_meg_comm_open(w, e);

    if (r == 0 && queue_device() && w->world != &meg_comm_self)
        w->world = wrap(w->world);
    return r;
}

int __real_meg_comm_open_tensors(struct meg_comm *world, const struct meg_device *d, struct meg_err *e);
int __wrap_meg_comm_open_tensors(struct meg_comm *world, const struct meg_device *d, struct meg_err *e);

int __wrap_meg_comm_open_tensors(struct meg_comm *world, const struct meg_device *d, struct meg_err *e)
{
    return queue_device() ? 0 : __real_meg_comm_open_tensors(world, d, e);
}
