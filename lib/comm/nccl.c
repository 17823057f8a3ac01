/*
 * nccl.c - tensor collectives over NCCL: the groups of ranks, and the table of operations.
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
#include <stdlib.h>
#include "base/mem.h"
#include "comm/internal.h"
#include "comm/nccl_internal.h"
#include "watchdog/watchdog.h"

static const struct meg_comm_ops ops;

static void attach(struct meg_comm *c, uint64_t id)
{
    const size_t size = (size_t)c->size;

    c->nccl = meg_new(sizeof *c->nccl);
    c->nccl->id = id;
    c->nccl->collectives = nccl_channel_new(meg_comm_group_of(c), c->rank, c->size);
    c->nccl->send = meg_new(size * sizeof *c->nccl->send);
    c->nccl->recv = meg_new(size * sizeof *c->nccl->recv);
    c->op = &ops;
}

static struct meg_comm *split(struct meg_comm *world, int color, const char *name)
{
    struct meg_comm *c = world->host->split(world, color, name);
    struct nccl_channel *from = world->nccl->collectives, *to;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;

    attach(c, (uint64_t)++world->nccl->nsplits << 32 | (uint32_t)color);
    to = c->nccl->collectives;
    config.blocking = 0;
    NCCL(from, ncclCommSplit(from->comm, color, world->rank, &to->comm, &config));
    nccl_wait_until_ready(from, from, "split"); /* NCCL sets to->comm when the call is complete */
    nccl_wait_until_ready(to, to, "split");
    to->is_open = true;
    return c;
}

static void set_timeout(struct meg_comm *c, double seconds)
{
    c->host->set_timeout(c, seconds);
}

static void channel_finalize(struct nccl_channel *c)
{
    nccl_drain(c);
    NCCL(c, ncclCommFinalize(c->comm));
}

static void for_each_channel(const struct meg_comm *c, void (*f)(struct nccl_channel *c))
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
    for_each_channel(c, nccl_channel_close);
    if (n->id == 0) {
        meg_device_on_wait(NULL);
        meg_watchdog_set_abort(c->watchdog, NULL);
    }
    free(n->send);
    free(n->recv);
    free(n);
    c->host->close(c);
}

static const struct meg_comm_ops ops = {
    .start = nccl_start,
    .wait = nccl_wait_work,
    .test = nccl_test_work,
    .alloc = nccl_alloc,
    .release = nccl_release,
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
    int r = meg_nccl_load(&nccl, e);
    int32_t has_failed = r < 0;
    struct nccl_channel *c;
    ncclUniqueId id;

    meg_host_all_reduce(world, &has_failed, 1, MEG_DTYPE_I32, MEG_REDUCE_MAX);
    if (has_failed || (r = check_gpus(world, d, e)) < 0)
        return r;
    if (!meg_watchdog_is_open(world->watchdog))
        return meg_fail(e, MEG_EFAIL,
                        "the TCP connections of the ranks to rank 0, which NCCL requires, could not be opened");
    nccl_device = d->op;
    attach(world, 0);
    c = world->nccl->collectives;
    if (c->rank == 0)
        NCCL(c, ncclGetUniqueId(&id));
    meg_host_broadcast(world, &id, sizeof id / sizeof(int32_t), MEG_DTYPE_I32, 0);
    meg_watchdog_set_abort(world->watchdog, nccl_abort_all);
    nccl_channel_init(c, id);
    nccl_wait_until_ready(c, c, "set-up");
    c->is_open = true;
    meg_device_on_wait(nccl_wait_event);
    return 0;
}
