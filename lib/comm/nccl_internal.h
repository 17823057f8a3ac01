/* nccl_internal.h - the state of tensor collectives over NCCL (nccl.c), for C only (comm/nccl_lib.h). */
#pragma once
#include "comm/collectives.h"
#include "comm/nccl_lib.h"
#include "device/device.h"
#include "watchdog/store.h"

struct nccl_work; /* an operation (nccl_work.c) */

struct nccl_channel {
    struct nccl_channel *next; /* next in the list of all channels */
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
struct nccl_registration {
    struct nccl_registration *next;
    const void *p;
    void *handle;
};

/* The channels of a group. */
struct meg_nccl {
    uint64_t id;     /* equal on the ranks of the group, and different from other groups'; world: 0 */
    int64_t nsplits; /* number of splits of this communicator */
    struct nccl_channel *collectives;
    struct nccl_channel **send, **recv; /* [size] elements are NULL until the first message */
    struct nccl_registration *registrations;
};

extern struct meg_nccl_lib nccl;
extern const struct meg_ops *nccl_device;  /* operations of the device that has the tensors */
extern struct nccl_channel *nccl_channels; /* list of all channels */

/* ---- nccl_channel.c ---- */

/*
 * Make an NCCL call for channel c.  A failure ends the process.  ncclInProgress is not a failure: the caller polls for
 * completion with nccl_is_ready.
 */
#define NCCL(c, call)                                                                                                  \
    do {                                                                                                               \
        const ncclResult_t r_ = (nccl_stop_if_aborted(), nccl.call);                                                   \
                                                                                                                       \
        if (r_ != ncclSuccess && r_ != ncclInProgress)                                                                 \
            nccl_failed(c, #call, r_);                                                                                 \
    } while (0)

/* After nccl_abort_all, block until the thread that called it ends the process: NCCL cannot be used any more. */
void nccl_stop_if_aborted(void);
/* End the process because of a failed NCCL call.  If a rank was lost, the watchdog reports it first. */
void nccl_failed(const struct nccl_channel *c, const char *call, ncclResult_t r) MEG_NORETURN;
/* Return whether no call on the communicator is in progress.  An error of an earlier operation ends the process. */
bool nccl_is_ready(const struct nccl_channel *c);
struct nccl_channel *nccl_channel_new(struct meg_comm_group *group, int rank, int size);
void nccl_channel_init(struct nccl_channel *c, ncclUniqueId id);
/*
 * Open a message channel as far as possible without blocking, and return whether it is open.  The sender, rank 0 of the
 * channel, creates the NCCL id; the store broadcasts it.
 */
bool nccl_ensure_open(struct nccl_channel *c);
/* Wait until the calls in progress on the communicators of two channels, which may be the same, are complete. */
void nccl_wait_until_ready(const struct nccl_channel *a, const struct nccl_channel *b, const char *what);
/* Abort all communicators.  Kernels that wait for a lost rank end, so that the process can exit. */
void nccl_abort_all(void);
void nccl_channel_close(struct nccl_channel *c);

/* ---- nccl_work.c ---- */

/* Return the name of the first operation of a channel that is not done; "set-up" if there is none. */
const char *nccl_work_name(const struct nccl_channel *c);
/* Wait until all operations of a channel are done. */
void nccl_drain(struct nccl_channel *c);
/*
 * Block until an event of the device is complete (meg_device_on_wait).  The event may depend on operations: time out if
 * the oldest operation in progress is not done within the timeout of its group.
 */
void nccl_wait_event(const struct meg_device *d, struct meg_event *event);

/* The functions of struct meg_comm_ops. */
struct meg_work *nccl_start(struct meg_comm *c, struct meg_stream *st, const struct meg_comm_call *x);
/* Make st wait for the operation.  Block the host only until the operation is in the stream of its channel. */
void nccl_wait_work(struct meg_work *w, struct meg_stream *st);
bool nccl_test_work(struct meg_work *w);

/* ---- nccl_memory.c ---- */

/* The functions of struct meg_comm_ops. */
void *nccl_alloc(struct meg_comm *const *groups, int n, size_t nbytes);
void nccl_release(struct meg_comm *const *groups, int n, void *p);
