/*
 * nccl_queue.h - an ordered queue of transfers over one NCCL communicator and one CUDA stream.
 *
 * A group has one queue for its collectives, and one for each direction between two of its ranks that send messages.
 * NCCL executes the operations of one communicator in order, so an operation that waits for a peer blocks all later
 * ones.  With one queue per direction, a message waits only for earlier messages in the same direction, as in MPI,
 * whatever the order in which ranks start and await messages.
 *
 * Buffers are in host memory.  A transfer stages them in device memory, which is allocated when the transfer is
 * launched and freed when it is complete.  No function waits for another rank: NCCL communicators are non-blocking
 * (ncclConfig_t.blocking = 0), and a transfer is launched only when the previous one is complete, so that no copy waits
 * for a kernel that waits for a peer.  A queue is opened at its first use; its NCCL id is exchanged over the watchdog's
 * key-value store.
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

/* Add q, whose fields above `lib` are set, to the queues that meg_nccl_progress handles. */
void meg_nccl_queue_add(struct meg_nccl_queue *q);
/* Create a transfer with empty buffers, which the caller fills in.  The caller also frees the transfer. */
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
