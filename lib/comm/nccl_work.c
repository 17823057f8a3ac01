/* nccl_work.c - start operations on channels, and wait for them. */
#include <stdlib.h>
#include "base/clock.h"
#include "base/mem.h"
#include "comm/internal.h"
#include "comm/nccl_internal.h"
#include "watchdog/watchdog.h"

static int64_t nstarted; /* number of operations that this process has started */

enum nccl_op { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, ALL_TO_ALL, BROADCAST, SEND, RECV };

enum progress {
    QUEUED,  /* the NCCL call has not been made */
    CALLED,  /* the NCCL call continues in the background */
    STARTED, /* the operation and then the event are in the channel's stream */
    DONE
};

struct nccl_work {
    struct meg_work w;
    struct nccl_channel *channel;
    struct nccl_work *next; /* next operation of the channel */
    int64_t seq;            /* number of the operation among all that this process has started */
    enum nccl_op type;
    const void *in; /* input of all_gather, all_to_all and reduce_scatter; message to send */
    int peer;       /* rank in the channel: peer of a message, or root of a broadcast */
    enum progress progress;
    bool is_released; /* the caller has waited: free the work when it is done */
    struct meg_event *event;
};

const char *nccl_work_name(const struct nccl_channel *c)
{
    return c->first ? c->first->w.op_name : "set-up";
}

static ncclDataType_t type_of(const struct nccl_work *n)
{
    switch (n->w.dtype) {
    case MEG_DTYPE_F32: return ncclFloat32;
    case MEG_DTYPE_F64: return ncclFloat64;
    case MEG_DTYPE_BF16: return ncclBfloat16;
    case MEG_DTYPE_F16: return ncclFloat16;
    case MEG_DTYPE_I32: return ncclInt32;
    case MEG_DTYPE_I64: return ncclInt64;
    case MEG_DTYPES: break;
    }
    MEG_ASSERT(!"a type");
    return ncclNumTypes;
}

static void call_all_to_all(const struct nccl_channel *c, const struct nccl_work *n)
{
    const size_t count = (size_t)n->w.n;

    NCCL(c, ncclGroupStart());
    for (int r = 0; r < c->size; r++) {
        NCCL(c, ncclSend(meg_element(n->in, r * n->w.n, n->w.dtype), count, type_of(n), r, c->comm,
                         (cudaStream_t)c->stream));
        NCCL(c, ncclRecv(meg_element(n->w.buf, r * n->w.n, n->w.dtype), count, type_of(n), r, c->comm,
                         (cudaStream_t)c->stream));
    }
    NCCL(c, ncclGroupEnd());
}

static void call(const struct nccl_channel *c, const struct nccl_work *n)
{
    const ncclRedOp_t op = n->w.op == MEG_REDUCE_SUM ? ncclSum : ncclMax;
    const cudaStream_t st = (cudaStream_t)c->stream;
    const size_t count = (size_t)n->w.n;
    void *buf = n->w.buf;

    switch (n->type) {
    case ALL_REDUCE: NCCL(c, ncclAllReduce(buf, buf, count, type_of(n), op, c->comm, st)); break;
    case REDUCE_SCATTER: NCCL(c, ncclReduceScatter(n->in, buf, count, type_of(n), op, c->comm, st)); break;
    case ALL_GATHER: NCCL(c, ncclAllGather(n->in, buf, count, type_of(n), c->comm, st)); break;
    case ALL_TO_ALL: call_all_to_all(c, n); break;
    case BROADCAST: NCCL(c, ncclBroadcast(buf, buf, count, type_of(n), n->peer, c->comm, st)); break;
    case SEND: NCCL(c, ncclSend(n->in, count, type_of(n), n->peer, c->comm, st)); break;
    case RECV: NCCL(c, ncclRecv(buf, count, type_of(n), n->peer, c->comm, st)); break;
    }
}

static void work_free(struct nccl_work *n)
{
    nccl_device->event_destroy(n->event);
    free(n);
}

/* Advance operation n of c as far as possible without blocking.  All earlier operations of c must be STARTED. */
static void advance(struct nccl_channel *c, struct nccl_work *n)
{
    if (n->progress == QUEUED && nccl_ensure_open(c)) {
        nccl_device->event_wait(c->stream, n->event);
        call(c, n);
        n->progress = CALLED;
    }
    if (n->progress == CALLED && nccl_is_ready(c)) {
        nccl_device->event_record(c->stream, n->event);
        n->progress = STARTED;
    }
}

static void progress_channel(struct nccl_channel *c)
{
    struct nccl_work *n;

    for (; (n = c->unstarted); c->unstarted = n->next) {
        advance(c, n);
        if (n->progress != STARTED)
            break;
    }
    if (c->first && c->is_open)
        nccl_is_ready(c); /* end the process if an operation failed */
    while ((n = c->first) && n->progress == STARTED && nccl_device->event_is_done(n->event)) {
        c->first = n->next;
        n->progress = DONE;
        if (n->is_released)
            work_free(n);
    }
}

static void progress_all(void)
{
    for (struct nccl_channel *c = nccl_channels; c; c = c->next)
        progress_channel(c);
}

/* Queue an operation; the caller sets type, in, peer, and the members of w that describe the operation. */
static struct meg_work *start(struct meg_comm *g, struct nccl_channel *c, struct meg_stream *st, struct nccl_work n)
{
    struct nccl_work *copy = meg_new(sizeof *copy);

    *copy = n;
    copy->w.g = meg_comm_group_of(g);
    copy->w.op_number = ++copy->w.g->nops;
    copy->channel = c;
    copy->seq = ++nstarted;
    copy->event = nccl_device->event_create();
    nccl_device->event_record(st, copy->event);
    if (c->first)
        c->last->next = copy;
    else
        c->first = copy;
    c->last = copy;
    if (!c->unstarted)
        c->unstarted = copy;
    progress_channel(c);
    return &copy->w;
}

static double nbytes_of(int64_t n, enum meg_dtype t)
{
    return (double)n * (double)meg_dtype_size(t);
}

struct meg_work *nccl_all_reduce(struct meg_comm *c, struct meg_stream *st, void *buf, int64_t n, enum meg_dtype t,
                                 enum meg_reduce_op op)
{
    c->nbytes_sent += meg_comm_volume_all_reduce(c->size, nbytes_of(n, t));
    return start(c, c->nccl->collectives, st,
                 (struct nccl_work){ .type = ALL_REDUCE,
                                     .w = { .op_name = "all-reduce", .buf = buf, .n = n, .dtype = t, .op = op } });
}

struct meg_work *nccl_reduce_scatter(struct meg_comm *c, struct meg_stream *st, void *out, const void *in, int64_t n,
                                     enum meg_dtype t, enum meg_reduce_op op)
{
    c->nbytes_sent += meg_comm_volume_sharded(c->size, nbytes_of(n, t));
    return start(c, c->nccl->collectives, st,
                 (struct nccl_work){ .type = REDUCE_SCATTER,
                                     .in = in,
                                     .w = { .op_name = "reduce-scatter", .buf = out, .n = n, .dtype = t, .op = op } });
}

struct meg_work *nccl_all_gather(struct meg_comm *c, struct meg_stream *st, void *out, const void *in, int64_t n,
                                 enum meg_dtype t)
{
    c->nbytes_sent += meg_comm_volume_sharded(c->size, nbytes_of(n, t));
    return start(c, c->nccl->collectives, st,
                 (struct nccl_work){
                     .type = ALL_GATHER, .in = in, .w = { .op_name = "all-gather", .buf = out, .n = n, .dtype = t } });
}

struct meg_work *nccl_all_to_all(struct meg_comm *c, struct meg_stream *st, void *out, const void *in, int64_t n,
                                 enum meg_dtype t)
{
    c->nbytes_sent += meg_comm_volume_sharded(c->size, nbytes_of(n, t));
    return start(c, c->nccl->collectives, st,
                 (struct nccl_work){
                     .type = ALL_TO_ALL, .in = in, .w = { .op_name = "all-to-all", .buf = out, .n = n, .dtype = t } });
}

struct meg_work *nccl_broadcast(struct meg_comm *c, struct meg_stream *st, void *buf, int64_t n, enum meg_dtype t,
                                int root)
{
    c->nbytes_sent += nbytes_of(n, t);
    return start(c, c->nccl->collectives, st,
                 (struct nccl_work){ .type = BROADCAST,
                                     .peer = root,
                                     .w = { .op_name = "broadcast", .buf = buf, .n = n, .dtype = t } });
}

/* Return the channel of the messages from rank `from` to rank `to` of a group.  Create it for the first message. */
static struct nccl_channel *message_channel(struct meg_comm *c, int from, int to)
{
    struct nccl_channel **at = from == c->rank ? &c->nccl->send[to] : &c->nccl->recv[from];

    if (!*at) {
        *at = nccl_channel_new(meg_comm_group_of(c), from != c->rank, 2);
        (*at)->exchange = (struct meg_store_collective){ .group = c->nccl->id,
                                                         .number = -1 - ((int64_t)from * c->size + to),
                                                         .op = MEG_STORE_BROADCAST,
                                                         .rank = (*at)->rank,
                                                         .size = 2 };
    }
    return *at;
}

struct meg_work *nccl_send(struct meg_comm *c, struct meg_stream *st, const void *buf, int64_t n, enum meg_dtype t,
                           int to)
{
    c->nbytes_sent += nbytes_of(n, t);
    return start(
        c, message_channel(c, c->rank, to), st,
        (struct nccl_work){ .type = SEND, .in = buf, .peer = 1, .w = { .op_name = "send", .n = n, .dtype = t } });
}

struct meg_work *nccl_recv(struct meg_comm *c, struct meg_stream *st, void *buf, int64_t n, enum meg_dtype t, int from)
{
    return start(
        c, message_channel(c, from, c->rank), st,
        (struct nccl_work){ .type = RECV, .peer = 0, .w = { .op_name = "receive", .buf = buf, .n = n, .dtype = t } });
}

void nccl_wait_work(struct meg_work *w, struct meg_stream *st)
{
    struct nccl_work *n = (struct nccl_work *)w;
    struct meg_comm_poll poll = { .w = w };
    const double start_s = meg_now_s();

    for (progress_channel(n->channel); n->progress < STARTED; progress_all())
        meg_comm_poll(&poll);
    meg_comm_poll_end(&poll);
    meg_comm_add_wait(meg_now_s() - start_s);
    nccl_device->event_wait(st, n->event);
    n->is_released = true;
    if (n->progress == DONE)
        work_free(n);
}

bool nccl_test_work(struct meg_work *w)
{
    struct nccl_work *n = (struct nccl_work *)w;

    progress_all();
    if (n->progress != DONE)
        return false;
    work_free(n);
    return true;
}

/* Return the oldest operation that is not done, or NULL. */
static const struct nccl_work *oldest_work(void)
{
    const struct nccl_work *oldest = NULL;

    for (const struct nccl_channel *c = nccl_channels; c; c = c->next)
        if (c->first && (!oldest || c->first->seq < oldest->seq))
            oldest = c->first;
    return oldest;
}

void nccl_wait_event(const struct meg_device *d, struct meg_event *event)
{
    struct meg_comm_poll poll = { 0 };
    struct meg_work copy; /* copy of the oldest operation, which may be freed during the wait */
    int64_t seq = 0;

    while (!d->op->event_is_done(event)) {
        const struct nccl_work *oldest = oldest_work();

        if (poll.w && (!oldest || oldest->seq != seq)) {
            meg_comm_poll_end(&poll);
            poll = (struct meg_comm_poll){ 0 };
        }
        if (oldest) {
            seq = oldest->seq;
            copy = oldest->w;
            poll.w = &copy;
            meg_comm_poll(&poll);
        }
        progress_all();
    }
    if (poll.w)
        meg_comm_poll_end(&poll);
}

void nccl_drain(struct nccl_channel *c)
{
    while (c->first) {
        const struct nccl_work *n = c->first;
        struct meg_comm_poll poll = { .w = &n->w };

        for (const int64_t seq = n->seq; c->first && c->first->seq == seq; progress_all())
            meg_comm_poll(&poll);
        meg_watchdog_wait_end(meg_comm_group_watchdog(c->group));
    }
}
