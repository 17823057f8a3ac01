/*
 * A channel: a communicator of NCCL's and a stream, on which transfers follow one another.
 *
 * A group has one for its collectives, and one for each direction between two of its ranks that send to
 * each other.  NCCL runs what one communicator is given in order, and what waits for a peer holds up what
 * comes after it; with a channel for each direction, messages wait for those before them and for nothing
 * else, as MPI's do, in whatever order ranks start and await them.
 *
 * Buffers are the host's: a transfer goes through device memory, which is there from its launch to its
 * end.  Nothing here waits.  NCCL is called non-blocking, and a transfer is launched when the one before
 * it is done, so that no copy has to wait for a kernel that waits for a peer.  Channels are opened when
 * they are first used; NCCL's id goes over the board.
 */
#ifndef MEG_COMM_NCCL_QUEUE_H
#define MEG_COMM_NCCL_QUEUE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "comm/nccl_lib.h"

/* What goes to a rank of the channel, or comes from it. */
struct meg_nccl_part {
    void *host;
    size_t nbytes;
    size_t at; /* in device memory */
};

struct meg_nccl_transfer {
    bool is_launched, is_done;
    void *device;
    struct meg_nccl_transfer *next;
    struct meg_nccl_part *in;   /* [size]: behind out */
    struct meg_nccl_part out[]; /* [size] */
};

struct meg_nccl_queue {
    uint64_t group; /* with from and to its name: the same on all its ranks, and of no other */
    int from, to;
    int rank, size; /* in the channel */
    int local_rank;
    const char *what;               /* in messages: the group */
    const struct meg_nccl_lib *lib; /* the rest is set when it is opened */
    ncclComm_t comm;
    cudaStream_t stream;
    bool is_open;
    struct meg_nccl_transfer *first, *last;
    struct meg_nccl_queue *next; /* of all channels */
};

/* Makes channel c, whose name, size and place are set, one of those that are taken on. */
void meg_nccl_queue_add(struct meg_nccl_queue *c);
/* Parts are the caller's to fill in. */
struct meg_nccl_transfer *meg_nccl_transfer_new(const struct meg_nccl_queue *c);
/* Takes t, until it is done. */
void meg_nccl_queue_submit(struct meg_nccl_queue *c, struct meg_nccl_transfer *t);
/* Take every channel on as far as it goes without waiting. */
void meg_nccl_progress(void);
/* Begins to close c, which has nothing under way. */
void meg_nccl_queue_finalize(struct meg_nccl_queue *c);
/* Whether c is closed. */
bool meg_nccl_queue_close(struct meg_nccl_queue *c);

#endif
