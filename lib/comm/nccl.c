/*
 * Tensor collectives over NCCL.
 *
 * A channel is an NCCL communicator with a stream of its own.  A group has one channel for collectives.  In groups
 * other than the world, the NCCL communicator of this channel is split from the world's (ncclCommSplit).  Two
 * ranks that exchange messages have one channel for each direction: NCCL executes the operations of a communicator in
 * order.  With one channel for both directions, a send could wait for a receive whose message the peer sends only
 * later.
 *
 * An operation starts when the work that its caller has queued on a stream is complete: an event, recorded on that
 * stream, makes the channel's stream wait.  The same event is then recorded behind the operation, and meg_comm.op->wait
 * makes a stream wait for it.  Only meg_comm_close and waits for events (meg_device_wait) block the host until
 * operations are complete.
 *
 * Communicators are non-blocking (ncclConfig_t.blocking = 0): a call that connects to peers continues in the
 * background, and its operation is not in the stream before the call is complete.  Until then, the operation and all
 * later ones of the channel are queued here, so that ranks may start messages to each other in any order.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "comm/collectives.h"
#include "comm/internal.h"
#include "comm/nccl_lib.h"
#include "device/device.h"
#include "watchdog/store.h"
#include "watchdog/watchdog.h"

enum nccl_op { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, ALL_TO_ALL, BROADCAST, SEND, RECV };

enum progress {
    QUEUED,  /* the NCCL call has not been made */
    CALLED,  /* the NCCL call continues in the background */
    STARTED, /* the operation and then the event are in the channel's stream */
    DONE
};

struct nccl_work {
    struct meg_work w;
    struct channel *channel;
    struct nccl_work *next; /* next operation of the channel */
    int64_t seq;            /* number of the operation among all that this process has started */
    enum nccl_op type;
    const void *in; /* input of all_gather, all_to_all and reduce_scatter; message to send */
    int peer;       /* rank in the channel: peer of a message, or root of a broadcast */
    enum progress progress;
    bool is_released; /* the caller has waited: free the work when it is done */
    struct meg_event *event;
};

struct channel {
    struct channel *next; /* next in the list of all channels */
    struct meg_comm_group *group;
    int rank, size; /* rank of this process in the channel, number of ranks */
    ncclComm_t comm;
    bool is_open; /* the call that creates comm is complete */
    struct meg_stream *stream;
    struct nccl_work *first, *last;       /* operations that are not done, in order */
    struct nccl_work *unstarted;          /* the first of them that is not STARTED, or NULL */
    struct meg_store_collective exchange; /* broadcast of a message channel's NCCL id; nbytes is 0 before it starts */
};

/* Memory that is registered with a group's channel for collectives. */
struct registration {
    struct registration *next;
    const void *p;
    void *handle;
};

/* The channels of a group. */
struct meg_nccl {
    uint64_t id;     /* equal on the ranks of the group, and different from other groups'; world: 0 */
    int64_t nsplits; /* number of splits of this communicator */
    struct channel *collectives;
    struct channel **send, **recv; /* [size] elements are NULL until the first message */
    struct registration *registrations;
};

static struct meg_nccl_lib lib;
static const struct meg_ops *device;
static int64_t nstarted; /* number of operations that this process has started */
static struct channel *channels;
static pthread_mutex_t channels_lock = PTHREAD_MUTEX_INITIALIZER; /* the watchdog's thread aborts all channels */

/*
 * Make an NCCL call for channel c.  A failure ends the process.  ncclInProgress is not a failure: the caller polls for
 * completion with is_ready.
 */
#define NCCL(c, call)                                                                                                  \
    do {                                                                                                               \
        const ncclResult_t r_ = (stop_if_aborted(), lib.call);                                                         \
                                                                                                                       \
        if (r_ != ncclSuccess && r_ != ncclInProgress)                                                                 \
            failed(c, #call, r_);                                                                                      \
    } while (0)

static atomic_bool is_aborted;

/* After abort_all, block until the thread that called abort_all ends the process: NCCL cannot be used any more. */
static void stop_if_aborted(void)
{
    while (is_aborted)
        pause();
}

/* End the process because of a failed NCCL call.  If a rank was lost, the watchdog reports it first. */
static void failed(const struct channel *c, const char *call, ncclResult_t r) MEG_NORETURN;
static void failed(const struct channel *c, const char *call, ncclResult_t r)
{
    const struct meg_comm *g = &c->group->c;

    meg_watchdog_await_report(meg_comm_group_watchdog(c->group));
    meg_die(MEG_EPEER, "%.*s failed in %s of group %s on rank %d of %d: %s", (int)strcspn(call, "("), call,
            c->first ? c->first->w.op_name : "set-up", g->name, g->rank, g->size, lib.ncclGetErrorString(r));
}

/* Return whether no call on the communicator is in progress.  An error of an earlier operation ends the process. */
static bool is_ready(const struct channel *c)
{
    ncclResult_t now = ncclSuccess;

    NCCL(c, ncclCommGetAsyncError(c->comm, &now));
    if (now != ncclSuccess && now != ncclInProgress)
        failed(c, "an operation", now);
    return now == ncclSuccess;
}

/* ---- channels ----------------------------------------------------------------------------------- */

static struct channel *channel_new(struct meg_comm_group *group, int rank, int size)
{
    struct channel *c = meg_new(sizeof *c);

    c->group = group;
    c->rank = rank;
    c->size = size;
    c->stream = device->stream_create(group->c.name);
    pthread_mutex_lock(&channels_lock);
    c->next = channels;
    channels = c;
    pthread_mutex_unlock(&channels_lock);
    return c;
}

static void channel_init(struct channel *c, ncclUniqueId id)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;

    config.blocking = 0;
    NCCL(c, ncclCommInitRankConfig(&c->comm, c->size, id, c->rank, &config));
}

/*
 * Open a message channel as far as possible without blocking, and return whether it is open.  The sender, rank 0 of the
 * channel, creates the NCCL id; the store broadcasts it.
 */
static bool ensure_open(struct channel *c)
{
    struct meg_watchdog *watchdog = meg_comm_group_watchdog(c->group);
    ncclUniqueId id;

    if (c->is_open)
        return true;
    if (!c->comm) {
        if (!c->exchange.nbytes) {
            c->exchange.nbytes = sizeof id;
            if (c->rank == 0)
                NCCL(c, ncclGetUniqueId(&id));
            meg_store_start(watchdog, &c->exchange, &id);
        }
        if (!meg_store_take(watchdog, &c->exchange, &id))
            return false;
        channel_init(c, id);
    }
    return c->is_open = is_ready(c);
}

/* Wait until the calls in progress on the communicators of two channels, which may be the same, are complete. */
static void wait_until_ready(const struct channel *a, const struct channel *b, const char *what)
{
    const struct meg_work w = { .g = a->group, .op_name = what };
    struct meg_comm_poll poll = { .w = &w };

    while (!is_ready(a) || !is_ready(b))
        meg_comm_poll(&poll);
    meg_comm_poll_end(&poll);
}

/* Abort all communicators.  Kernels that wait for a lost rank end, so that the process can exit. */
static void abort_all(void)
{
    is_aborted = true;
    pthread_mutex_lock(&channels_lock);
    for (struct channel *c = channels; c; c = c->next)
        if (c->comm)
            lib.ncclCommAbort(c->comm);
    pthread_mutex_unlock(&channels_lock);
}

/* ---- operations --------------------------------------------------------------------------------- */

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

static void call_all_to_all(const struct channel *c, const struct nccl_work *n)
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

static void call(const struct channel *c, const struct nccl_work *n)
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
    device->event_destroy(n->event);
    free(n);
}

/* Advance operation n of c as far as possible without blocking.  All earlier operations of c must be STARTED. */
static void advance(struct channel *c, struct nccl_work *n)
{
    if (n->progress == QUEUED && ensure_open(c)) {
        device->event_wait(c->stream, n->event);
        call(c, n);
        n->progress = CALLED;
    }
    if (n->progress == CALLED && is_ready(c)) {
        device->event_record(c->stream, n->event);
        n->progress = STARTED;
    }
}

static void progress_channel(struct channel *c)
{
    struct nccl_work *n;

    for (; (n = c->unstarted); c->unstarted = n->next) {
        advance(c, n);
        if (n->progress != STARTED)
            break;
    }
    if (c->first && c->is_open)
        is_ready(c); /* end the process if an operation failed */
    while ((n = c->first) && n->progress == STARTED && device->event_is_done(n->event)) {
        c->first = n->next;
        n->progress = DONE;
        if (n->is_released)
            work_free(n);
    }
}

static void progress_all(void)
{
    for (struct channel *c = channels; c; c = c->next)
        progress_channel(c);
}

/* Queue an operation; the caller sets type, in, peer, and the members of w that describe the operation. */
static struct meg_work *start(struct meg_comm *g, struct channel *c, struct meg_stream *st, struct nccl_work n)
{
    struct nccl_work *copy = meg_new(sizeof *copy);

    *copy = n;
    copy->w.g = meg_comm_group_of(g);
    copy->w.op_number = ++copy->w.g->nops;
    copy->channel = c;
    copy->seq = ++nstarted;
    copy->event = device->event_create();
    device->event_record(st, copy->event);
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

static struct meg_work *all_reduce(struct meg_comm *c, struct meg_stream *st, void *buf, int64_t n, enum meg_dtype t,
                                   enum meg_reduce_op op)
{
    c->nbytes_sent += meg_comm_volume_all_reduce(c->size, nbytes_of(n, t));
    return start(c, c->nccl->collectives, st,
                 (struct nccl_work){ .type = ALL_REDUCE,
                                     .w = { .op_name = "all-reduce", .buf = buf, .n = n, .dtype = t, .op = op } });
}

static struct meg_work *reduce_scatter(struct meg_comm *c, struct meg_stream *st, void *out, const void *in, int64_t n,
                                       enum meg_dtype t, enum meg_reduce_op op)
{
    c->nbytes_sent += meg_comm_volume_sharded(c->size, nbytes_of(n, t));
    return start(c, c->nccl->collectives, st,
                 (struct nccl_work){ .type = REDUCE_SCATTER,
                                     .in = in,
                                     .w = { .op_name = "reduce-scatter", .buf = out, .n = n, .dtype = t, .op = op } });
}

static struct meg_work *all_gather(struct meg_comm *c, struct meg_stream *st, void *out, const void *in, int64_t n,
                                   enum meg_dtype t)
{
    c->nbytes_sent += meg_comm_volume_sharded(c->size, nbytes_of(n, t));
    return start(c, c->nccl->collectives, st,
                 (struct nccl_work){
                     .type = ALL_GATHER, .in = in, .w = { .op_name = "all-gather", .buf = out, .n = n, .dtype = t } });
}

static struct meg_work *all_to_all(struct meg_comm *c, struct meg_stream *st, void *out, const void *in, int64_t n,
                                   enum meg_dtype t)
{
    c->nbytes_sent += meg_comm_volume_sharded(c->size, nbytes_of(n, t));
    return start(c, c->nccl->collectives, st,
                 (struct nccl_work){
                     .type = ALL_TO_ALL, .in = in, .w = { .op_name = "all-to-all", .buf = out, .n = n, .dtype = t } });
}

static struct meg_work *broadcast(struct meg_comm *c, struct meg_stream *st, void *buf, int64_t n, enum meg_dtype t,
                                  int root)
{
    c->nbytes_sent += nbytes_of(n, t);
    return start(c, c->nccl->collectives, st,
                 (struct nccl_work){ .type = BROADCAST,
                                     .peer = root,
                                     .w = { .op_name = "broadcast", .buf = buf, .n = n, .dtype = t } });
}

/* Return the channel of the messages from rank `from` to rank `to` of a group.  Create it for the first message. */
static struct channel *message_channel(struct meg_comm *c, int from, int to)
{
    struct channel **at = from == c->rank ? &c->nccl->send[to] : &c->nccl->recv[from];

    if (!*at) {
        *at = channel_new(meg_comm_group_of(c), from != c->rank, 2);
        (*at)->exchange = (struct meg_store_collective){ .group = c->nccl->id,
                                                         .number = -1 - ((int64_t)from * c->size + to),
                                                         .op = MEG_STORE_BROADCAST,
                                                         .rank = (*at)->rank,
                                                         .size = 2 };
    }
    return *at;
}

static struct meg_work *send(struct meg_comm *c, struct meg_stream *st, const void *buf, int64_t n, enum meg_dtype t,
                             int to)
{
    c->nbytes_sent += nbytes_of(n, t);
    return start(
        c, message_channel(c, c->rank, to), st,
        (struct nccl_work){ .type = SEND, .in = buf, .peer = 1, .w = { .op_name = "send", .n = n, .dtype = t } });
}

static struct meg_work *recv(struct meg_comm *c, struct meg_stream *st, void *buf, int64_t n, enum meg_dtype t,
                             int from)
{
    return start(
        c, message_channel(c, from, c->rank), st,
        (struct nccl_work){ .type = RECV, .peer = 0, .w = { .op_name = "receive", .buf = buf, .n = n, .dtype = t } });
}

/* ---- waits -------------------------------------------------------------------------------------- */

/* Make st wait for the operation.  Block the host only until the operation is in the stream of its channel. */
static void wait_work(struct meg_work *w, struct meg_stream *st)
{
    struct nccl_work *n = (struct nccl_work *)w;
    struct meg_comm_poll poll = { .w = w };
    const double start_s = meg_now_s();

    for (progress_channel(n->channel); n->progress < STARTED; progress_all())
        meg_comm_poll(&poll);
    meg_comm_poll_end(&poll);
    meg_comm_add_wait(meg_now_s() - start_s);
    device->event_wait(st, n->event);
    n->is_released = true;
    if (n->progress == DONE)
        work_free(n);
}

static bool test_work(struct meg_work *w)
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

    for (const struct channel *c = channels; c; c = c->next)
        if (c->first && (!oldest || c->first->seq < oldest->seq))
            oldest = c->first;
    return oldest;
}

/*
 * Block until an event of the device is complete (meg_device_on_wait).  The event may depend on operations: time out if
 * the oldest operation in progress is not done within the timeout of its group.
 */
static void wait_event(const struct meg_device *d, struct meg_event *event)
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

/* ---- groups ------------------------------------------------------------------------------------- */

static const struct meg_comm_ops ops;

static void attach(struct meg_comm *c, uint64_t id)
{
    const size_t size = (size_t)c->size;

    c->nccl = meg_new(sizeof *c->nccl);
    c->nccl->id = id;
    c->nccl->collectives = channel_new(meg_comm_group_of(c), c->rank, c->size);
    c->nccl->send = meg_new(size * sizeof *c->nccl->send);
    c->nccl->recv = meg_new(size * sizeof *c->nccl->recv);
    c->op = &ops;
}

static struct meg_comm *split(struct meg_comm *world, int color, const char *name)
{
    struct meg_comm *c = world->host->split(world, color, name);
    struct channel *from = world->nccl->collectives, *to;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;

    attach(c, (uint64_t)++world->nccl->nsplits << 32 | (uint32_t)color);
    to = c->nccl->collectives;
    config.blocking = 0;
    NCCL(from, ncclCommSplit(from->comm, color, world->rank, &to->comm, &config));
    wait_until_ready(from, from, "split"); /* NCCL sets to->comm when the call is complete */
    wait_until_ready(to, to, "split");
    to->is_open = true;
    return c;
}

static void set_timeout(struct meg_comm *c, double seconds)
{
    c->host->set_timeout(c, seconds);
}

/* Wait until all operations of a channel are done. */
static void drain(struct channel *c)
{
    while (c->first) {
        const struct nccl_work *n = c->first;
        struct meg_comm_poll poll = { .w = &n->w };

        for (const int64_t seq = n->seq; c->first && c->first->seq == seq; progress_all())
            meg_comm_poll(&poll);
        meg_watchdog_wait_end(meg_comm_group_watchdog(c->group));
    }
}

static void channel_close(struct channel *c)
{
    struct channel **link = &channels;

    wait_until_ready(c, c, "finalize");
    pthread_mutex_lock(&channels_lock);
    while (*link != c)
        link = &(*link)->next;
    *link = c->next;
    pthread_mutex_unlock(&channels_lock);
    NCCL(c, ncclCommDestroy(c->comm));
    device->stream_destroy(c->stream);
    free(c);
}

static void channel_finalize(struct channel *c)
{
    drain(c);
    NCCL(c, ncclCommFinalize(c->comm));
}

static void for_each_channel(const struct meg_comm *c, void (*f)(struct channel *c))
{
    const struct meg_nccl *n = c->nccl;

    f(n->collectives);
    for (int r = 0; r < c->size; r++) {
        if (n->send[r])
            f(n->send[r]);
        if (n->recv[r])
            f(n->recv[r]);
    }
}

/*
 * Start to finalize all channels before waiting for any, because ranks may have opened the message channels in
 * different orders.
 */
static void close_comm(struct meg_comm *c)
{
    struct meg_nccl *n = c->nccl;

    for_each_channel(c, channel_finalize);
    for_each_channel(c, channel_close);
    if (n->id == 0) {
        meg_device_on_wait(NULL);
        meg_watchdog_set_abort(c->watchdog, NULL);
    }
    free(n->send);
    free(n->recv);
    free(n);
    c->host->close(c);
}

/* ---- registered memory -------------------------------------------------------------------------- */

/* Register nbytes of memory at p with the channel for collectives of a group. */
static void register_memory(struct meg_nccl *g, void *p, size_t nbytes)
{
    struct registration *r = meg_new(sizeof *r);

    *r = (struct registration){ .next = g->registrations, .p = p };
    NCCL(g->collectives, ncclCommRegister(g->collectives->comm, p, nbytes, &r->handle));
    g->registrations = r;
}

/* Deregister the memory at p, which must be registered. */
static void deregister_memory(struct meg_nccl *g, const void *p)
{
    struct registration **link = &g->registrations, *r;

    while (*link && (*link)->p != p)
        link = &(*link)->next;
    r = *link;
    MEG_ASSERT(r);
    *link = r->next;
    NCCL(g->collectives, ncclCommDeregister(g->collectives->comm, r->handle));
    free(r);
}

static void *alloc(struct meg_comm *const *groups, int n, size_t nbytes)
{
    ncclResult_t r;
    void *p;

    nbytes = nbytes ? nbytes : 1;
    stop_if_aborted();
    if ((r = lib.ncclMemAlloc(&p, nbytes)) == ncclUnhandledCudaError) {
        meg_warn("NCCL cannot allocate %zu MiB of device memory; %zu MiB are free", nbytes >> 20,
                 device->free_nbytes() >> 20);
        return NULL;
    }
    if (r != ncclSuccess)
        failed(groups[0]->nccl->collectives, "ncclMemAlloc", r);
    for (int i = 0; i < n; i++)
        register_memory(groups[i]->nccl, p, nbytes);
    return p;
}

static void release(struct meg_comm *const *groups, int n, void *p)
{
    for (int i = 0; i < n; i++) {
        drain(groups[i]->nccl->collectives);
        deregister_memory(groups[i]->nccl, p);
    }
    NCCL(groups[0]->nccl->collectives, ncclMemFree(p));
}

/* ---- the table ---------------------------------------------------------------------------------- */

static const struct meg_comm_ops ops = {
    .all_reduce = all_reduce,
    .reduce_scatter = reduce_scatter,
    .all_gather = all_gather,
    .all_to_all = all_to_all,
    .broadcast = broadcast,
    .send = send,
    .recv = recv,
    .wait = wait_work,
    .test = test_work,
    .alloc = alloc,
    .release = release,
    .split = split,
    .set_timeout = set_timeout,
    .close = close_comm,
};

/* Return MEG_EUSAGE on all ranks if two of them use one GPU, which NCCL does not support. */
static int check_gpus(struct meg_comm *world, const struct meg_device *d, struct meg_err *e)
{
    const int64_t id = (int64_t)d->id;
    int64_t *ids = meg_new((size_t)world->size * sizeof *ids);
    int r = 0;

    meg_host_all_gather(world, ids, &id, 1, MEG_DTYPE_I64);
    for (int i = 1; i < world->size && r == 0; i++)
        for (int j = 0; j < i && r == 0; j++)
            if (ids[i] && ids[i] == ids[j])
                r = meg_fail(e, MEG_EUSAGE,
                             "ranks %d and %d use the same GPU; start one rank per GPU, and check CUDA_VISIBLE_DEVICES "
                             "and the local ranks that the launcher sets",
                             j, i);
    free(ids);
    return r;
}

int meg_comm_open_nccl(struct meg_comm *world, const struct meg_device *d, struct meg_err *e)
{
    int r = meg_nccl_load(&lib, e);
    int32_t has_failed = r < 0;
    struct channel *c;
    ncclUniqueId id;

    meg_host_all_reduce(world, &has_failed, 1, MEG_DTYPE_I32, MEG_REDUCE_MAX);
    if (has_failed || (r = check_gpus(world, d, e)) < 0)
        return r;
    if (!meg_watchdog_is_open(world->watchdog))
        return meg_fail(e, MEG_EFAIL,
                        "the TCP connections of the ranks to rank 0, which NCCL requires, could not be opened");
    device = d->op;
    attach(world, 0);
    c = world->nccl->collectives;
    if (c->rank == 0)
        NCCL(c, ncclGetUniqueId(&id));
    meg_host_broadcast(world, &id, sizeof id / sizeof(int32_t), MEG_DTYPE_I32, 0);
    meg_watchdog_set_abort(world->watchdog, abort_all);
    channel_init(c, id);
    wait_until_ready(c, c, "set-up");
    c->is_open = true;
    meg_device_on_wait(wait_event);
    return 0;
}
