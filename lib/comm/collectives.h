/*
 * collectives.h - what groups of several ranks do alike over any transport: waits with timeouts, counting of sent
 * bytes, and reductions.  A transport (mpi.c, nccl.c) only moves bytes.
 */
#ifndef MEG_COMM_COLLECTIVES_H
#define MEG_COMM_COLLECTIVES_H
#include <stddef.h>
#include "comm/comm.h"

MEG_BEGIN_DECLS

struct meg_comm_group;

/* A started operation: the transfer in progress and, for reductions, the stage that follows it. */
struct meg_work {
    struct meg_comm_group *g;
    const char *op_name;
    int64_t op_number; /* in its group; equal on all ranks of the operation */
    void *buf;         /* all-reduce: the buffer; reduce-scatter: out */
    int64_t n, offset; /* elements of buf; of its current chunk's start */
    enum meg_dtype dtype;
    enum meg_reduce_op op;
    bool (*next_stage)(struct meg_work *w); /* run after the transfer; false: w is complete.  NULL: the same */
};

/*
 * All functions but the last three start the transfer of w, in elements of w->dtype.  The transfers of a group are
 * started in the same order on all its ranks.
 */
struct meg_transport {
    size_t work_nbytes; /* of the transport's work struct, which begins with a struct meg_work */
    /* Send part i of the chunk at from (g->displs, g->counts) to rank i; receive parts for this rank in rank order. */
    void (*alltoallv)(struct meg_work *w, const void *from, void *to);
    /* Gather the parts of the chunk at buf (g->displs, g->counts) on all ranks. */
    void (*allgatherv)(struct meg_work *w, void *buf);
    void (*all_gather)(struct meg_work *w, void *out, const void *in, int64_t n);
    void (*all_to_all)(struct meg_work *w, void *out, const void *in, int64_t n);
    void (*broadcast)(struct meg_work *w, void *buf, int64_t n, int root);
    void (*send)(struct meg_work *w, const void *buf, int64_t n, int to);
    void (*recv)(struct meg_work *w, void *buf, int64_t n, int from);
    void (*barrier)(struct meg_work *w);
    bool (*is_done)(struct meg_work *w); /* progress the transfer started last; true: it is complete */
    struct meg_comm *(*split)(struct meg_comm_group *world, int color, const char *name);
    void (*close)(struct meg_comm_group *g); /* frees g */
};

struct meg_comm_group {
    struct meg_comm c;
    struct meg_comm_group *world; /* this group was split from; itself for the world */
    const struct meg_transport *transport;
    double timeout_s;
    int64_t nops;         /* started so far */
    void *recv_buf;       /* parts to reduce */
    size_t recv_cap;      /* bytes of recv_buf */
    int *counts, *displs; /* [size] parts of the chunk in progress: elements, and offsets from its start */
};

static inline struct meg_comm_group *meg_comm_group_of(struct meg_comm *c)
{
    return (struct meg_comm_group *)c;
}

/* The run's watchdog, or NULL. */
static inline struct meg_watchdog *meg_comm_group_watchdog(const struct meg_comm_group *g)
{
    return g->world->c.watchdog;
}

/*
 * Initialize a group whose c.rank and c.size are set; the timeout is that of world.  world is NULL if g is the world
 * communicator.
 */
void meg_comm_group_init(struct meg_comm_group *g, struct meg_comm_group *world, const struct meg_transport *transport,
                         const char *name);

/* acc [n] = sum or maximum of `size` consecutive parts of n elements, in order. */
void meg_reduce_local(void *acc, const void *parts, int64_t n, int size, enum meg_dtype t, enum meg_reduce_op op);

MEG_END_DECLS
#endif
