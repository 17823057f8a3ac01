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

enum op { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, ALL_TO_ALL, BROADCAST, SEND, RECV, BARRIER };

struct op_args {
    struct queue_comm *q;
    enum op op;
    void *out;
    const void *in;
    int64_t n;
    enum meg_dtype t;
    enum meg_reduce_op reduce_op;
    int peer;
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
    const struct meg_comm_ops *op = c->op;

    c->watchdog = a->q->c.watchdog;
    switch (a->op) {
    case ALL_REDUCE: return op->all_reduce(c, NULL, a->out, a->n, a->t, a->reduce_op);
    case REDUCE_SCATTER: return op->reduce_scatter(c, NULL, a->out, a->in, a->n, a->t, a->reduce_op);
    case ALL_GATHER: return op->all_gather(c, NULL, a->out, a->in, a->n, a->t);
    case ALL_TO_ALL: return op->all_to_all(c, NULL, a->out, a->in, a->n, a->t);
    case BROADCAST: return op->broadcast(c, NULL, a->out, a->n, a->t, a->peer);
    case SEND: return op->send(c, NULL, a->in, a->n, a->t, a->peer);
    case RECV: return op->recv(c, NULL, a->out, a->n, a->t, a->peer);
    case BARRIER: return op->barrier(c, NULL);
    }
    return NULL;
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

/* Return the bytes that this rank sends, which are counted when the collective is queued, as over NCCL. */
static double nbytes_to_send(const struct op_args *a)
{
    const double nbytes = (double)a->n * (double)meg_dtype_size(a->t);

    switch (a->op) {
    case ALL_REDUCE: return meg_comm_volume_all_reduce(a->q->c.size, nbytes);
    case REDUCE_SCATTER:
    case ALL_GATHER:
    case ALL_TO_ALL: return meg_comm_volume_sharded(a->q->c.size, nbytes);
    case BROADCAST:
    case SEND: return nbytes;
    default: return 0;
    }
}

static struct meg_work *queue_op(struct queue_comm *q, struct meg_stream *after, struct meg_stream *on,
                                 const struct op_args *a)
{
    const struct meg_ops *op = queue_device()->op;
    struct meg_work *w = meg_new(sizeof *w);

    w->q = q;
    q->c.nbytes_sent += nbytes_to_send(a);
    w->done = op->event_create();
    op->event_record(after, w->done);
    op->event_wait(on, w->done);
    queue_push(on, run_op, a, sizeof *a);
    op->event_record(on, w->done);
    return w;
}

static struct meg_work *collective(struct meg_comm *c, struct meg_stream *st, struct op_args a)
{
    struct queue_comm *q = queue_comm_of(c);

    a.q = q;
    return queue_op(q, st, q->collectives, &a);
}

static struct meg_work *all_reduce(struct meg_comm *c, struct meg_stream *st, void *buf, int64_t n, enum meg_dtype t,
                                   enum meg_reduce_op op)
{
    return collective(c, st, (struct op_args){ .op = ALL_REDUCE, .out = buf, .n = n, .t = t, .reduce_op = op });
}

static struct meg_work *reduce_scatter(struct meg_comm *c, struct meg_stream *st, void *out, const void *in, int64_t n,
                                       enum meg_dtype t, enum meg_reduce_op op)
{
    return collective(c, st,
                      (struct op_args){ .op = REDUCE_SCATTER, .out = out, .in = in, .n = n, .t = t, .reduce_op = op });
}

static struct meg_work *all_gather(struct meg_comm *c, struct meg_stream *st, void *out, const void *in, int64_t n,
                                   enum meg_dtype t)
{
    return collective(c, st, (struct op_args){ .op = ALL_GATHER, .out = out, .in = in, .n = n, .t = t });
}

static struct meg_work *all_to_all(struct meg_comm *c, struct meg_stream *st, void *out, const void *in, int64_t n,
                                   enum meg_dtype t)
{
    return collective(c, st, (struct op_args){ .op = ALL_TO_ALL, .out = out, .in = in, .n = n, .t = t });
}

static struct meg_work *broadcast(struct meg_comm *c, struct meg_stream *st, void *buf, int64_t n, enum meg_dtype t,
                                  int root)
{
    return collective(c, st, (struct op_args){ .op = BROADCAST, .out = buf, .n = n, .t = t, .peer = root });
}

static struct meg_work *barrier(struct meg_comm *c, struct meg_stream *st)
{
    return collective(c, st, (struct op_args){ .op = BARRIER });
}

static struct meg_work *message(struct queue_comm *q, struct meg_stream *st, struct meg_stream **on, struct op_args a)
{
    if (!*on)
        *on = queue_stream_create("message");
    a.q = q;
    return queue_op(q, st, *on, &a);
}

static struct meg_work *send(struct meg_comm *c, struct meg_stream *st, const void *buf, int64_t n, enum meg_dtype t,
                             int to)
{
    struct queue_comm *q = queue_comm_of(c);

    return message(q, st, &q->send[to], (struct op_args){ .op = SEND, .in = buf, .n = n, .t = t, .peer = to });
}

static struct meg_work *recv(struct meg_comm *c, struct meg_stream *st, void *buf, int64_t n, enum meg_dtype t,
                             int from)
{
    struct queue_comm *q = queue_comm_of(c);

    return message(q, st, &q->recv[from], (struct op_args){ .op = RECV, .out = buf, .n = n, .t = t, .peer = from });
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

static struct meg_work *host_work(struct meg_comm *c, struct op_args a)
{
    struct meg_work *w = meg_new(sizeof *w);

    w->q = a.q = queue_comm_of(c);
    queue_unlock_memory();
    w->base = start_base(&a);
    queue_lock_memory();
    return w;
}

static struct meg_work *host_all_reduce(struct meg_comm *c, struct meg_stream *st, void *buf, int64_t n,
                                        enum meg_dtype t, enum meg_reduce_op op)
{
    (void)st;
    return host_work(c, (struct op_args){ .op = ALL_REDUCE, .out = buf, .n = n, .t = t, .reduce_op = op });
}

static struct meg_work *host_all_gather(struct meg_comm *c, struct meg_stream *st, void *out, const void *in, int64_t n,
                                        enum meg_dtype t)
{
    (void)st;
    return host_work(c, (struct op_args){ .op = ALL_GATHER, .out = out, .in = in, .n = n, .t = t });
}

static struct meg_work *host_broadcast(struct meg_comm *c, struct meg_stream *st, void *buf, int64_t n,
                                       enum meg_dtype t, int root)
{
    (void)st;
    return host_work(c, (struct op_args){ .op = BROADCAST, .out = buf, .n = n, .t = t, .peer = root });
}

static struct meg_work *host_barrier(struct meg_comm *c, struct meg_stream *st)
{
    (void)st;
    return host_work(c, (struct op_args){ .op = BARRIER });
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
    .all_reduce = all_reduce,
    .reduce_scatter = reduce_scatter,
    .all_gather = all_gather,
    .all_to_all = all_to_all,
    .broadcast = broadcast,
    .send = send,
    .recv = recv,
    .barrier = barrier,
    .wait = wait_on_stream,
    .test = is_complete,
    .split = split,
    .set_timeout = set_timeout,
    .close = close_comm,
};

static const struct meg_comm_ops host_ops = {
    .all_reduce = host_all_reduce,
    .all_gather = host_all_gather,
    .broadcast = host_broadcast,
    .barrier = host_barrier,
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
