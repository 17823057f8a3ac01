/* nccl_channel.c - channels: open, close and abort NCCL communicators. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/mem.h"
#include "comm/nccl_internal.h"
#include "watchdog/watchdog.h"

struct meg_nccl_lib nccl;
const struct meg_ops *nccl_device;
struct nccl_channel *nccl_channels;
static pthread_mutex_t channels_lock = PTHREAD_MUTEX_INITIALIZER; /* the watchdog's thread aborts all channels */

static atomic_bool is_aborted;

void nccl_stop_if_aborted(void)
{
    while (is_aborted)
        pause();
}

void nccl_failed(const struct nccl_channel *c, const char *call, ncclResult_t r)
{
    const struct meg_comm *g = &c->group->c;

    meg_watchdog_await_report(meg_comm_group_watchdog(c->group));
    meg_die(MEG_EPEER, "%.*s failed in %s of group %s on rank %d of %d: %s", (int)strcspn(call, "("), call,
            nccl_work_name(c), g->name, g->rank, g->size, nccl.ncclGetErrorString(r));
}

bool nccl_is_ready(const struct nccl_channel *c)
{
    ncclResult_t now = ncclSuccess;

    NCCL(c, ncclCommGetAsyncError(c->comm, &now));
    if (now != ncclSuccess && now != ncclInProgress)
        nccl_failed(c, "an operation", now);
    return now == ncclSuccess;
}

struct nccl_channel *nccl_channel_new(struct meg_comm_group *group, int rank, int size)
{
    struct nccl_channel *c = meg_new(sizeof *c);

    c->group = group;
    c->rank = rank;
    c->size = size;
    c->stream = nccl_device->stream_create(group->c.name);
    pthread_mutex_lock(&channels_lock);
    c->next = nccl_channels;
    nccl_channels = c;
    pthread_mutex_unlock(&channels_lock);
    return c;
}

void nccl_channel_init(struct nccl_channel *c, ncclUniqueId id)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;

    config.blocking = 0;
    NCCL(c, ncclCommInitRankConfig(&c->comm, c->size, id, c->rank, &config));
}

bool nccl_ensure_open(struct nccl_channel *c)
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
        nccl_channel_init(c, id);
    }
    return c->is_open = nccl_is_ready(c);
}

void nccl_wait_until_ready(const struct nccl_channel *a, const struct nccl_channel *b, const char *what)
{
    const struct meg_work w = { .g = a->group, .op_name = what };
    struct meg_comm_poll poll = { .w = &w };

    while (!nccl_is_ready(a) || !nccl_is_ready(b))
        meg_comm_poll(&poll);
    meg_comm_poll_end(&poll);
}

void nccl_abort_all(void)
{
    is_aborted = true;
    pthread_mutex_lock(&channels_lock);
    for (struct nccl_channel *c = nccl_channels; c; c = c->next)
        if (c->comm)
            nccl.ncclCommAbort(c->comm);
    pthread_mutex_unlock(&channels_lock);
}

void nccl_channel_close(struct nccl_channel *c)
{
    struct nccl_channel **link = &nccl_channels;

    nccl_wait_until_ready(c, c, "finalize");
    pthread_mutex_lock(&channels_lock);
    while (*link != c)
        link = &(*link)->next;
    *link = c->next;
    pthread_mutex_unlock(&channels_lock);
    NCCL(c, ncclCommDestroy(c->comm));
    nccl_device->stream_destroy(c->stream);
    free(c);
}
