#include "comm/nccl_queue.h"
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "watchdog/watchdog.h"

_Static_assert(sizeof(ncclUniqueId) == sizeof((struct meg_kv_store_entry *)0)->bytes, "an id is a note");

static struct meg_nccl_queue *channels;

#define CUDA(c, call)                                                                                                  \
    do {                                                                                                               \
        const cudaError_t r_ = (c)->lib->call;                                                                         \
                                                                                                                       \
        if (r_ != cudaSuccess)                                                                                         \
            failed(c, #call, (c)->lib->cudaGetErrorString(r_));                                                        \
    } while (0)
/* What is in progress comes out of is_settled. */
#define NCCL(c, call)                                                                                                  \
    do {                                                                                                               \
        const ncclResult_t r_ = (c)->lib->call;                                                                        \
                                                                                                                       \
        if (r_ != ncclSuccess && r_ != ncclInProgress)                                                                 \
            failed(c, #call, (c)->lib->ncclGetErrorString(r_));                                                        \
    } while (0)

/* The board, which may know of a lost peer, speaks first. */
static void failed(const struct meg_nccl_queue *c, const char *call, const char *why) MEG_NORETURN;
static void failed(const struct meg_nccl_queue *c, const char *call, const char *why)
{
    meg_watchdog_await_report();
    meg_die(MEG_EPEER, "%.*s failed in group %s on rank %d of %d: %s", (int)strcspn(call, "("), call, c->what, c->rank,
            c->size, why);
}

static bool is_settled(const struct meg_nccl_queue *c)
{
    ncclResult_t now;

    NCCL(c, ncclCommGetAsyncError(c->comm, &now));
    if (now != ncclSuccess && now != ncclInProgress)
        failed(c, "NCCL", c->lib->ncclGetErrorString(now));
    return now == ncclSuccess;
}

/* ---- opening ------------------------------------------------------------------------------------ */

void meg_nccl_queue_add(struct meg_nccl_queue *c)
{
    c->next = channels;
    channels = c;
}

/* The channel's rank 0 makes the id. */
static bool get_nccl_id(const struct meg_nccl_queue *c, ncclUniqueId *id)
{
    struct meg_kv_store_entry note = { .group = c->group, .from = c->from, .to = c->to, .readers = c->size - 1 };

    if (c->rank == 0) {
        NCCL(c, ncclGetUniqueId(id));
        memcpy(note.bytes, id, sizeof note.bytes);
        meg_kv_store_put(&note);
        return true;
    }
    if (!meg_kv_store_get(&note))
        return false;
    memcpy(id, note.bytes, sizeof note.bytes);
    return true;
}

static bool is_open(struct meg_nccl_queue *c)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclUniqueId id;

    if (c->is_open)
        return true;
    c->lib = meg_nccl_lib(c->local_rank);
    if (!c->comm) {
        if (!get_nccl_id(c, &id))
            return false;
        config.blocking = 0;
        CUDA(c, cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking));
        NCCL(c, ncclCommInitRankConfig(&c->comm, c->size, id, c->rank, &config));
    }
    return c->is_open = is_settled(c);
}

/* ---- transfers ---------------------------------------------------------------------------------- */

struct meg_nccl_transfer *meg_nccl_transfer_new(const struct meg_nccl_queue *c)
{
    const size_t size = (size_t)c->size;
    struct meg_nccl_transfer *t = meg_new(sizeof *t + 2 * size * sizeof *t->out);

    t->in = t->out + size;
    return t;
}

/* Places in device memory; what goes to several ranks lies there once. */
static size_t lay_out(struct meg_nccl_transfer *t, int size)
{
    const struct meg_nccl_part *before = NULL;
    size_t n = 0;

    for (int i = 0; i < 2 * size; i++) {
        struct meg_nccl_part *p = &t->out[i];

        if (i < size && before && p->host == before->host && p->nbytes == before->nbytes) {
            p->at = before->at;
            continue;
        }
        p->at = n;
        n += (p->nbytes + 255) / 256 * 256;
        if (i < size && p->nbytes)
            before = p;
    }
    return n;
}

static void *device_at(const struct meg_nccl_transfer *t, const struct meg_nccl_part *p)
{
    return (char *)t->device + p->at;
}

static void launch(struct meg_nccl_queue *c, struct meg_nccl_transfer *t)
{
    size_t copied = 0;

    CUDA(c, cudaMallocAsync(&t->device, lay_out(t, c->size), c->stream));
    for (int r = 0; r < c->size; r++) {
        const struct meg_nccl_part *p = &t->out[r];

        if (!p->nbytes || p->at < copied)
            continue;
        CUDA(c, cudaMemcpyAsync(device_at(t, p), p->host, p->nbytes, cudaMemcpyHostToDevice, c->stream));
        copied = p->at + p->nbytes;
    }
    NCCL(c, ncclGroupStart());
    for (int r = 0; r < c->size; r++) {
        if (t->out[r].nbytes)
            NCCL(c, ncclSend(device_at(t, &t->out[r]), t->out[r].nbytes, ncclUint8, r, c->comm, c->stream));
        if (t->in[r].nbytes)
            NCCL(c, ncclRecv(device_at(t, &t->in[r]), t->in[r].nbytes, ncclUint8, r, c->comm, c->stream));
    }
    NCCL(c, ncclGroupEnd());
    t->is_launched = true;
}

/* The stream is idle: this waits for the copies alone. */
static void fetch(struct meg_nccl_queue *c, struct meg_nccl_transfer *t)
{
    for (int r = 0; r < c->size; r++) {
        const struct meg_nccl_part *p = &t->in[r];

        if (p->nbytes)
            CUDA(c, cudaMemcpyAsync(p->host, device_at(t, p), p->nbytes, cudaMemcpyDeviceToHost, c->stream));
    }
    CUDA(c, cudaFreeAsync(t->device, c->stream));
    CUDA(c, cudaStreamSynchronize(c->stream));
}

static bool first_is_done(struct meg_nccl_queue *c)
{
    struct meg_nccl_transfer *t = c->first;
    cudaError_t now;

    if (!is_open(c))
        return false;
    if (!t->is_launched)
        launch(c, t);
    if (!is_settled(c))
        return false;
    now = c->lib->cudaStreamQuery(c->stream);
    if (now == cudaErrorNotReady)
        return false;
    if (now != cudaSuccess)
        failed(c, "a transfer", c->lib->cudaGetErrorString(now));
    fetch(c, t);
    return t->is_done = true;
}

static void move(struct meg_nccl_queue *c)
{
    while (c->first && first_is_done(c))
        c->first = c->first->next;
}

void meg_nccl_progress(void)
{
    for (struct meg_nccl_queue *c = channels; c; c = c->next)
        move(c);
}

void meg_nccl_queue_submit(struct meg_nccl_queue *c, struct meg_nccl_transfer *t)
{
    if (c->first)
        c->last->next = t;
    else
        c->first = t;
    c->last = t;
    move(c);
}

/* ---- closing ------------------------------------------------------------------------------------ */

void meg_nccl_queue_finalize(struct meg_nccl_queue *c)
{
    MEG_ASSERT(!c->first);
    if (c->is_open)
        NCCL(c, ncclCommFinalize(c->comm));
}

bool meg_nccl_queue_close(struct meg_nccl_queue *c)
{
    struct meg_nccl_queue **at = &channels;

    if (c->is_open && !is_settled(c))
        return false;
    if (c->is_open) {
        NCCL(c, ncclCommDestroy(c->comm));
        CUDA(c, cudaStreamDestroy(c->stream));
    }
    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    return true;
}
