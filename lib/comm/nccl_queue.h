/*
 * nccl_queue.h - an ordered queue of transfers over one NCCL communicator and one CUDA stream.
 *
 * A group has one queue for its collectives and one for each direction between two of its ranks that send messages.
 * NCCL executes the operations of one communicator in order, and one that waits for a peer blocks those after it;
 * with a queue per direction, messages wait only for earlier messages of the same direction, as in MPI, in whatever
 * order ranks start and await them.
 *
 * Buffers are in host memory: a transfer stages them in device memory, which is allocated from its launch to its
 * completion.  No function blocks.  NCCL communicators are non-blocking (ncclConfig_t.blocking = 0), and a transfer is
 * launched when the one before it is complete, so that no copy waits for a kernel that waits for a peer.  Queues are
 * opened at their first use; their NCCL id is exchanged over the watchdog's key-value store.
 */
#ifndef MEG_COMM_NCCL_QUEUE_H
#define MEG_COMM_NCCL_QUEUE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "comm/collectives.h"
#include "comm/nccl_lib.h"

/* Host buffer to send to one rank of the queue, or to receive from it. */
struct meg_nccl_buffer {
    void *host;
    size_t nbytes;
    size_t offset; /* in the transfer's device memory */
};

struct meg_nccl_transfer {
    bool is_launched, is_done;
    void *device;
    struct meg_nccl_transfer *next;
    struct meg_nccl_buffer *in;   /* [size], after out */
    struct meg_nccl_buffer out[]; /* [size] */
};

struct meg_nccl_queue {
    uint64_t
        group_id;   /* (group_id, from, to) is equal on all ranks of the queue, and unique among those of each rank */
    int from, to;   /* ranks of the group; -1: the queue of collectives */
    int rank, size; /* in the queue */
    int local_rank;
    const struct meg_comm_group *group;
    /* set when it is opened */
    const struct meg_nccl_lib *lib;
    ncclComm_t comm;
    cudaStream_t stream;
    bool is_open;
    struct meg_nccl_transfer *first, *last;
    struct meg_nccl_queue *next; /* in the list of all queues */
};

/* Add q, with all fields above lib set, to the queues that meg_nccl_progress handles. */
void meg_nccl_queue_add(struct meg_nccl_queue *q);
/* A new transfer with empty buffers for the caller to fill in and to free. */
struct meg_nccl_transfer *meg_nccl_transfer_new(const struct meg_nccl_queue *q);
/* Append t; q borrows it until t->is_done. */
void meg_nccl_queue_submit(struct meg_nccl_queue *q, struct meg_nccl_transfer *t);
/* Progress all queues as far as possible without blocking. */
void meg_nccl_progress(void);
/* Begin to close an empty queue. */
void meg_nccl_queue_finalize(struct meg_nccl_queue *q);
/* Close a finalized queue; false: not finished, call again. */
bool meg_nccl_queue_close(struct meg_nccl_queue *q);

#endif
