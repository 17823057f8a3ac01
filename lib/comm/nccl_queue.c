/* Open queues of NCCL transfers, and launch and complete the transfers, without blocking. */
#include "comm/nccl_queue.h"
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "watchdog/kv_store.h"
#include "watchdog/watchdog.h"

_Static_assert(sizeof(ncclUniqueId) == sizeof((struct meg_kv_store_entry *)0)->value, "the store's value holds an id");

/* List of all queues of this process. */
static struct meg_nccl_queue *queues;

#define CUDA(q, call)                                                                                                  \
    do {                                                                                                               \
        const cudaError_t r_ = (q)->lib->call;                                                                         \
                                                                                                                       \
        if (r_ != cudaSuccess)                                                                                         \
            failed(q, #call, (q)->lib->cudaGetErrorString(r_));                                                        \
    } while (0)
/* ncclInProgress is not an error: is_ready polls for completion. */
#define NCCL(q, call)                                                                                                  \
    do {                                                                                                               \
        const ncclResult_t r_ = (q)->lib->call;                                                                        \
                                                                                                                       \
        if (r_ != ncclSuccess && r_ != ncclInProgress)                                                                 \
            failed(q, #call, (q)->lib->ncclGetErrorString(r_));                                                        \
    } while (0)

/*
 * End the process with a message about the failed call.  First give the group's watchdog, if any, a few seconds to
 * report the lost rank and to end the process.
 */
static void failed(const struct meg_nccl_queue *q, const char *call, const char *why) MEG_NORETURN;
static void failed(const struct meg_nccl_queue *q, const char *call, const char *why)
{
    meg_watchdog_await_report(meg_comm_group_watchdog(q->group));
    meg_die(MEG_EPEER, "%.*s failed in group %s on rank %d of %d: %s", (int)strcspn(call, "("), call, q->group->c.name,
            q->rank, q->size, why);
}

/* Return whether no NCCL call on the communicator is in progress. */
static bool is_ready(const struct meg_nccl_queue *q)
{
    ncclResult_t now;

    NCCL(q, ncclCommGetAsyncError(q->comm, &now));
    if (now != ncclSuccess && now != ncclInProgress)
        failed(q, "NCCL", q->lib->ncclGetErrorString(now));
    return now == ncclSuccess;
}

/* ---- opening ------------------------------------------------------------------------------------ */

void meg_nccl_queue_add(struct meg_nccl_queue *q)
{
    q->next = queues;
    queues = q;
}

/*
 * Get the unique id of the queue's NCCL communicator.  Rank 0 of the queue creates the id and stores it for the other
 * ranks.  Return false if the id has not arrived yet.
 */
static bool get_nccl_id(const struct meg_nccl_queue *q, ncclUniqueId *id)
{
    struct meg_watchdog *w = meg_comm_group_watchdog(q->group);
    struct meg_kv_store_entry entry = { .group = q->group_id, .from = q->from, .to = q->to, .nreaders = q->size - 1 };

    if (q->rank == 0) {
        NCCL(q, ncclGetUniqueId(id));
        memcpy(entry.value, id, sizeof entry.value);
        meg_kv_store_put(w, &entry);
        return true;
    }
    if (!meg_kv_store_get(w, &entry))
        return false;
    memcpy(id, entry.value, sizeof entry.value);
    return true;
}

/* Open the communicator as far as possible without blocking, and return whether it is open. */
static bool ensure_open(struct meg_nccl_queue *q)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclUniqueId id;

    if (q->is_open)
        return true;
    q->lib = meg_nccl_lib(q->local_rank);
    if (!q->comm) {
        if (!get_nccl_id(q, &id))
            return false;
        config.blocking = 0;
        CUDA(q, cudaStreamCreateWithFlags(&q->stream, cudaStreamNonBlocking));
        NCCL(q, ncclCommInitRankConfig(&q->comm, q->size, id, q->rank, &config));
    }
    return q->is_open = is_ready(q);
}

/* ---- transfers ---------------------------------------------------------------------------------- */

struct meg_nccl_transfer *meg_nccl_transfer_new(const struct meg_nccl_queue *q)
{
    const size_t size = (size_t)q->size;
    struct meg_nccl_transfer *t = meg_new(sizeof *t + 2 * size * sizeof *t->out);

    t->in = t->out + size;
    return t;
}

/*
 * Assign offsets in device memory.  A buffer that is sent to several ranks is stored once.  Return the total size in
 * bytes.
 */
static size_t assign_offsets(struct meg_nccl_transfer *t, int size)
{
    const struct meg_nccl_buffer *before = NULL;
    size_t n = 0;

    for (int i = 0; i < 2 * size; i++) {
        struct meg_nccl_buffer *b = &t->out[i];

        if (i < size && before && b->host == before->host && b->nbytes == before->nbytes) {
            b->offset = before->offset;
            continue;
        }
        b->offset = n;
        n += (b->nbytes + 255) / 256 * 256;
        if (i < size && b->nbytes)
            before = b;
    }
    return n;
}

static void *device_ptr(const struct meg_nccl_transfer *t, const struct meg_nccl_buffer *b)
{
    return (char *)t->device + b->offset;
}

static void launch(struct meg_nccl_queue *q, struct meg_nccl_transfer *t)
{
    size_t copied = 0;

    CUDA(q, cudaMallocAsync(&t->device, assign_offsets(t, q->size), q->stream));
    for (int r = 0; r < q->size; r++) {
        const struct meg_nccl_buffer *b = &t->out[r];

        if (!b->nbytes || b->offset < copied)
            continue;
        CUDA(q, cudaMemcpyAsync(device_ptr(t, b), b->host, b->nbytes, cudaMemcpyHostToDevice, q->stream));
        copied = b->offset + b->nbytes;
    }
    NCCL(q, ncclGroupStart());
    for (int r = 0; r < q->size; r++) {
        if (t->out[r].nbytes)
            NCCL(q, ncclSend(device_ptr(t, &t->out[r]), t->out[r].nbytes, ncclUint8, r, q->comm, q->stream));
        if (t->in[r].nbytes)
            NCCL(q, ncclRecv(device_ptr(t, &t->in[r]), t->in[r].nbytes, ncclUint8, r, q->comm, q->stream));
    }
    NCCL(q, ncclGroupEnd());
    t->is_launched = true;
}

/* Copy received data to the host.  The stream is idle, so the synchronization waits only for the copies. */
static void copy_to_host(struct meg_nccl_queue *q, struct meg_nccl_transfer *t)
{
    for (int r = 0; r < q->size; r++) {
        const struct meg_nccl_buffer *b = &t->in[r];

        if (b->nbytes)
            CUDA(q, cudaMemcpyAsync(b->host, device_ptr(t, b), b->nbytes, cudaMemcpyDeviceToHost, q->stream));
    }
    CUDA(q, cudaFreeAsync(t->device, q->stream));
    CUDA(q, cudaStreamSynchronize(q->stream));
}

/* Progress the first transfer, and return whether it is complete. */
static bool head_is_done(struct meg_nccl_queue *q)
{
    struct meg_nccl_transfer *t = q->first;
    cudaError_t now;

    if (!ensure_open(q))
        return false;
    if (!t->is_launched)
        launch(q, t);
    if (!is_ready(q))
        return false;
    now = q->lib->cudaStreamQuery(q->stream);
    if (now == cudaErrorNotReady)
        return false;
    if (now != cudaSuccess)
        failed(q, "a transfer", q->lib->cudaGetErrorString(now));
    copy_to_host(q, t);
    return t->is_done = true;
}

static void progress_queue(struct meg_nccl_queue *q)
{
    while (q->first && head_is_done(q))
        q->first = q->first->next;
}

void meg_nccl_progress(void)
{
    for (struct meg_nccl_queue *q = queues; q; q = q->next)
        progress_queue(q);
}

void meg_nccl_queue_submit(struct meg_nccl_queue *q, struct meg_nccl_transfer *t)
{
    if (q->first)
        q->last->next = t;
    else
        q->first = t;
    q->last = t;
    progress_queue(q);
}

/* ---- closing ------------------------------------------------------------------------------------ */

void meg_nccl_queue_finalize(struct meg_nccl_queue *q)
{
    MEG_ASSERT(!q->first);
    if (q->is_open)
        NCCL(q, ncclCommFinalize(q->comm));
}

bool meg_nccl_queue_close(struct meg_nccl_queue *q)
{
    struct meg_nccl_queue **link = &queues;

    if (q->is_open && !is_ready(q))
        return false;
    if (q->is_open) {
        NCCL(q, ncclCommDestroy(q->comm));
        CUDA(q, cudaStreamDestroy(q->stream));
    }
    while (*link != q)
        link = &(*link)->next;
    *link = q->next;
    return true;
}
