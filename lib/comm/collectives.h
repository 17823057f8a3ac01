/*
 * collectives.h - the code that the MPI and store transports (mpi.c, store.c) have in common: waits with timeouts,
 * counts of sent bytes, and reductions.  nccl.c uses only the structs and the waits.
 */
#pragma once
#include <stddef.h>
#include "comm/comm.h"

struct meg_comm_group;

/* A started operation: the transfer in progress and, for reductions, the stage that follows the transfer. */
struct meg_work {
    struct meg_comm_group *g;
    const char *op_name;
    int64_t op_number; /* number of operations that this rank has started in the group, including this one */
    struct meg_comm_call call;
    int64_t offset; /* element offset of the current chunk of an all-reduce */
    /*
     * Process the received data, then start the next transfer and return true, or return false if w is complete.  NULL
     * if w is complete after its first transfer.
     */
    bool (*next_stage)(struct meg_work *w);
};

/*
 * Counts are in elements of w->call.dtype.  All ranks of a group start its collectives in the same order.  A transport
 * without alltoallv and allgatherv has host collectives only, and its `start` implements all-reduces.
 */
struct meg_transport {
    size_t work_nbytes; /* size in bytes of the transport's work struct, which begins with a struct meg_work */
    /*
     * Start to send part i (g->displs, g->counts) of the chunk at `from` to rank i, and to receive the parts for this
     * rank in `to`, in rank order.
     */
    void (*alltoallv)(struct meg_work *w, const void *from, void *to);
    /* Start to gather the parts (g->displs, g->counts) of the chunk at `buf` on all ranks. */
    void (*allgatherv)(struct meg_work *w, void *buf);
    /* Start a transfer for w: the operation itself, or a gather or exchange of the values that w reduces. */
    void (*start)(struct meg_work *w, const struct meg_comm_call *x);
    bool (*is_done)(struct meg_work *w); /* progress the last transfer that w started; return whether it is complete */
    struct meg_comm *(*split)(struct meg_comm_group *world, int color, const char *name);
    void (*close)(struct meg_comm_group *g); /* close and free g */
};

struct meg_comm_group {
    struct meg_comm c;
    struct meg_comm_group *world; /* group from which this group was split; in the world communicator, itself */
    const struct meg_transport *transport;
    double timeout_s;
    bool is_oversubscribed; /* in the world communicator: more ranks share the CPUs of this rank than there are CPUs */
    int64_t nops;           /* number of operations started so far */
    void *recv_buf;         /* received parts to reduce */
    size_t recv_cap;        /* capacity of recv_buf in bytes */
    int *counts, *displs;   /* [size] number of elements and element offset of each part in the current chunk */
};

static inline struct meg_comm_group *meg_comm_group_of(struct meg_comm *c)
{
    return (struct meg_comm_group *)c;
}

/* Return the watchdog of the run, or NULL. */
static inline struct meg_watchdog *meg_comm_group_watchdog(const struct meg_comm_group *g)
{
    return g->world->c.watchdog;
}

/*
 * Initialize a group.  c.rank and c.size must be set.  The group inherits the timeout of world.  If g is itself the
 * world communicator, world is NULL and the timeout is ten minutes.
 */
void meg_comm_group_init(struct meg_comm_group *g, struct meg_comm_group *world, const struct meg_transport *transport,
                         const char *name);

/*
 * A wait of the host for operation w, which may time out.  The caller sets w, sets the other members to zero, and calls
 * meg_comm_poll repeatedly until the operation is complete, then meg_comm_poll_end.
 */
struct meg_comm_poll {
    const struct meg_work *w;
    int count;
    bool sleeps;              /* the next calls sleep, because the wait is long */
    double begin_s, before_s; /* times of the first and of the last check of the timeout */
    double waited_s;          /* time waited until before_s */
};

/*
 * Every 64 calls, yield the CPU and check the timeout of the group.  In a long wait of oversubscribed ranks, sleep and
 * check at each call instead, so that the rank that is waited for gets the CPU.  At the timeout, end the process with
 * MEG_EPEER, unless the watchdog extends the wait.  The time in which any rank runs a task (meg_watchdog_task_begin)
 * does not count toward the timeout.  An interval of a second or more between two checks does not count, either: this
 * process was probably suspended.
 */
void meg_comm_poll(struct meg_comm_poll *p);
void meg_comm_poll_end(struct meg_comm_poll *p);

/*
 * Set acc [n] to the sum or maximum of `size` consecutive parts of n elements.  A NaN makes the maximum NaN.  acc may
 * be `parts`.
 */
void meg_reduce_local(void *acc, const void *parts, int64_t n, int size, enum meg_dtype t, enum meg_reduce_op op);
