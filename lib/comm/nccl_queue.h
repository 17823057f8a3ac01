/*
 * nccl_queue.h - an ordered queue of transfers over one NCCL communicator and one CUDA stream.
 *
 * A group has one queue for collectives.  Two ranks that exchange messages have one queue for each direction.  NCCL
 * executes the operations of one communicator in order: an operation that waits for a peer blocks all later operations.
 * With one queue per direction, a message waits only for earlier messages in the same direction, as in MPI.  Ranks may
 * start and await messages in any order.
 *
 * Buffers are in host memory.  A transfer stages its buffers in device memory, which is allocated at the launch and
 * freed when the transfer is complete.  No function waits for another rank: NCCL communicators are non-blocking
 * (ncclConfig_t.blocking = 0).  A transfer is launched only when the previous transfer is complete.  Otherwise, a copy
 * could wait for a kernel that waits for a peer.  A queue is opened at its first use.  The ranks exchange the NCCL id
 * of the queue over the watchdog's key-value store.
 */
#ifndef MEG_COMM_NCCL_QUEUE_H
#define MEG_COMM_NCCL_QUEUE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "comm/collectives.h"
#include "comm/nccl_lib.h"

/* A host buffer that is sent to one rank of the queue, or received from it. */
struct meg_nccl_buffer {
    void *host;
    size_t nbytes;
    size_t offset; /* byte offset in the transfer's device memory */
};

struct meg_nccl_transfer {
    bool is_launched, is_done;
    void *device;
    struct meg_nccl_transfer *next;
    struct meg_nccl_buffer *in;   /* [size] receive buffers, stored after out */
    struct meg_nccl_buffer out[]; /* [size] send buffers */
};

struct meg_nccl_queue {
    /* (group_id, from, to) is equal on all ranks of the queue, and unique among the queues of each rank */
    uint64_t group_id;
    int from, to;   /* sender and receiver, as ranks of the group; -1 for the queue of collectives */
    int rank, size; /* rank of this process in the queue, and number of ranks */
    int local_rank;
    const struct meg_comm_group *group;
    /* fields that are set when the queue is opened */
    const struct meg_nccl_lib *lib;
    ncclComm_t comm;
    cudaStream_t stream;
    bool is_open;
    struct meg_nccl_transfer *first, *last; /* list of the transfers that are not complete */
    struct meg_nccl_queue *next;            /* next queue in the list of all queues */
};

/* Add q to the queues that meg_nccl_progress handles.  The fields of q above `lib` must be set. */
void meg_nccl_queue_add(struct meg_nccl_queue *q);
/* Create a transfer with empty buffers.  The caller sets the buffers, and frees the transfer. */
struct meg_nccl_transfer *meg_nccl_transfer_new(const struct meg_nccl_queue *q);
/* Append t to q, which borrows t until t->is_done. */
void meg_nccl_queue_submit(struct meg_nccl_queue *q, struct meg_nccl_transfer *t);
/* Progress all queues as far as possible without blocking. */
void meg_nccl_progress(void);
/* Begin to close an empty queue. */
void meg_nccl_queue_finalize(struct meg_nccl_queue *q);
/* Close a finalized queue.  Return false while NCCL is still finalizing; the caller then calls again. */
bool meg_nccl_queue_close(struct meg_nccl_queue *q);

#endif
