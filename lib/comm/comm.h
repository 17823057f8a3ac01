/*
 * A communicator: a group of ranks and the collectives over it, behind one table.  The group of
 * one (self) is what a run without a launcher has; its collectives leave the data as it is.
 * Buffers are device memory of the backend in use.  Calls are collective and in the same order on all ranks.
 */
#ifndef MEG_COMM_COMM_H
#define MEG_COMM_COMM_H
#include <stdint.h>
#include "tensor/dtype.h"

MEG_BEGIN_DECLS

enum meg_reduce { MEG_SUM, MEG_MAX };

struct meg_comm;
struct meg_comm_ops {
    const char *name;
    /* buf [n] becomes the sum or maximum over ranks, taken in rank order. */
    void (*all_reduce)(struct meg_comm *c, void *buf, int64_t n, enum meg_dtype dtype, enum meg_reduce how);
};

struct meg_comm {
    const struct meg_comm_ops *op;
    int rank, size;
};

/* The group of one. */
extern struct meg_comm meg_comm_self;

static inline void meg_all_reduce(struct meg_comm *c, void *buf, int64_t n, enum meg_dtype dtype, enum meg_reduce how)
{
    c->op->all_reduce(c, buf, n, dtype, how);
}

MEG_END_DECLS
#endif
