/* nccl_work.c - start operations on channels, and wait for them. */
#include <stdlib.h>
#include "base/clock.h"
#include "base/mem.h"
#include "comm/internal.h"
#include "comm/nccl_internal.h"
#include "watchdog/watchdog.h"

static int64_t nstarted; /* number of operations that this process has started */

enum progress {
    QUEUED,  /* the NCCL call has not been made */
    CALLED,  /* the NCCL call continues in the background */
    STARTED, /* the operation and then the event are in the channel's stream */
    DONE
};

struct nccl_work {
    struct meg_work w; /* call.peer is a rank in the channel */
    struct nccl_channel *channel;
    struct nccl_work *next; /* next operation of the channel */
    int64_t seq;            /* number of the operation among all that this process has started */
    enum progress progress;
    bool is_released; /* the caller has waited: free the work when it is done */
    struct meg_event *event;
};

const char *nccl_work_name(const struct nccl_channel *c)
{
    return c->first ? c->first->w.op_name : "set-up";
}

static ncclDataType_t type_of(enum meg_dtype t)
{
    switch (t) {
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

static void call_all_to_all(const struct nccl_channel *c, const struct meg_comm_call *x)
{
    const ncclDataType_t type = type_of(x->dtype);
    const cudaStream_t st = (cudaStream_t)c->stream;
    const size_t n = (size_t)x->n;

    NCCL(c, ncclGroupStart());
    for (int r = 0; r < c->size; r++) {
        NCCL(c, ncclSend(meg_element(x->in, r * x->n, x->dtype), n, type, r, c->comm, st));
        NCCL(c, ncclRecv(meg_element(x->out, r * x->n, x->dtype), n, type, r, c->comm, st));
    }
    NCCL(c, ncclGroupEnd());
}

static void call(const struct nccl_channel *c, const struct meg_comm_call *x)
{
    const ncclRedOp_t op = x->reduce == MEG_REDUCE_SUM ? ncclSum : ncclMax;
    const ncclDataType_t type = type_of(x->dtype);
    const cudaStream_t st = (cudaStream_t)c->stream;
    const size_t n = (size_t)x->n;

    switch (x->op) {
    case MEG_ALL_REDUCE: NCCL(c, ncclAllReduce(x->out, x->out, n, type, op, c->comm, st)); break;
    case MEG_REDUCE_SCATTER: NCCL(c, ncclReduceScatter(x->in, x->out, n, type, op, c->comm, st)); break;
    case MEG_ALL_GATHER: NCCL(c, ncclAllGather(x->in, x->out, n, type, c->comm, st)); break;
    case MEG_ALL_TO_ALL: call_all_to_all(c, x); break;
    case MEG_BROADCAST: NCCL(c, ncclBroadcast(x->out, x->out, n, type, x->peer, c->comm, st)); break;
    case MEG_SEND: NCCL(c, ncclSend(x->in, n, type, x->peer, c->comm, st)); break;
    case MEG_RECV: NCCL(c, ncclRecv(x->out, n, type, x->peer, c->comm, st)); break;
    case MEG_BARRIER: MEG_ASSERT(!"a barrier of tensors");
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
        call(c, &n->w.call);
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

struct meg_work *nccl_start(struct meg_comm *g, struct meg_stream *st, const struct meg_comm_call *x)
{
    struct nccl_channel *c = x->op == MEG_SEND   ? message_channel(g, g->rank, x->peer)
                             : x->op == MEG_RECV ? message_channel(g, x->peer, g->rank)
                                                 : g->nccl->collectives;
    struct nccl_work *n = meg_new(sizeof *n);

    g->nbytes_sent += meg_comm_volume(x, g->size);
    n->w.g = meg_comm_group_of(g);
    n->w.op_name = meg_comm_op_name(x->op);
    n->w.op_number = ++n->w.g->nops;
    n->w.call = *x;
    if (x->op == MEG_SEND || x->op == MEG_RECV)
        n->w.call.peer = x->op == MEG_SEND; /* rank 0 of the channel sends to rank 1 */
    n->channel = c;
    n->seq = ++nstarted;
    n->event = nccl_device->event_create();
    nccl_device->event_record(st, n->event);
    if (c->first)
        c->last->next = n;
    else
        c->first = n;
    c->last = n;
    if (!c->unstarted)
        c->unstarted = n;
    progress_channel(c);
    return &n->w;
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
