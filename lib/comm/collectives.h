/*
 * What groups of several ranks share whatever moves their bytes: waits and their deadlines, what is counted
 * as sent, and reductions.  A transport (mpi.c, nccl.c) moves bytes, and is all that differs.
 */
#ifndef MEG_COMM_COLLECTIVES_H
#define MEG_COMM_COLLECTIVES_H
#include <stddef.h>
#include "comm/comm.h"

struct meg_comm_group;

/* A started operation: what moves now, and for reductions what is to follow it. */
struct meg_work {
    struct meg_comm_group *g;
    const char *what;
    int64_t number; /* in its group: what ranks that wait for each other share */
    void *buf;      /* all-reduce: the whole buffer; reduce-scatter: out */
    int64_t n, at;
    enum meg_dtype t;
    enum meg_reduce_op how;
    bool (*then)(struct meg_work *w); /* after what moves: false when all is done; NULL: it is */
};

/* Each but the last three starts a transfer for w, of elements of w->t; those of one group are in one order. */
struct meg_transport {
    size_t work_nbytes; /* of its own struct, which begins with a struct meg_work */
    /* Part i of the piece at from, cut by g->count and g->first, goes to rank i; what arrives for this
     * rank lies in rank order in to. */
    void (*alltoallv)(struct meg_work *w, const void *from, void *to);
    /* Every rank's part of the piece at buf comes to all. */
    void (*allgatherv)(struct meg_work *w, void *buf);
    void (*all_gather)(struct meg_work *w, void *out, const void *in, int64_t n);
    void (*all_to_all)(struct meg_work *w, void *out, const void *in, int64_t n);
    void (*broadcast)(struct meg_work *w, void *buf, int64_t n, int root);
    void (*send)(struct meg_work *w, const void *buf, int64_t n, int to);
    void (*recv)(struct meg_work *w, void *buf, int64_t n, int from);
    void (*barrier)(struct meg_work *w);
    bool (*is_done)(struct meg_work *w); /* what was started last; takes it on */
    struct meg_comm *(*split)(struct meg_comm_group *world, int color, const char *name);
    void (*close)(struct meg_comm_group *g); /* frees g */
};

struct meg_comm_group {
    struct meg_comm c;
    const struct meg_transport *move;
    double deadline_s;
    int64_t started; /* operations so far */
    void *arrived;   /* parts to be added up */
    size_t cap;
    int *count, *first; /* [size] of the piece under way */
};

static inline struct meg_comm_group *meg_comm_group_of(struct meg_comm *c)
{
    return (struct meg_comm_group *)c;
}

/* c.rank and c.size are set. */
void meg_comm_group_init(struct meg_comm_group *g, const struct meg_transport *move, const char *name,
                         double deadline_s);

/* acc [n] = sum or maximum over size parts of n that lie behind each other, in order. */
void meg_reduce_local(void *acc, const void *part, int64_t n, int size, enum meg_dtype t, enum meg_reduce_op how);

#endif
