/*
 * A communicator: a group of ranks and the collectives over it, behind one table.  The group of one
 * (self) is what a run without a launcher has; its collectives only copy.
 *
 * Operations are started and waited for separately, so that they can overlap computing: start gives a
 * handle that must be waited for exactly once, and until then the buffers are not to be touched.  Calls
 * are collective: every rank of the group makes them, in the same order.  Buffers are device memory of
 * the backend in use, and may lie anywhere unless a comment says otherwise.  Counts are in elements, any of an
 * all-reduce, and else at most INT32_MAX.
 *
 * Sums are taken in rank order and in f32 where the type is narrower, so a result depends on the ranks'
 * values and on nothing else.  A peer that is gone, or does not come within the group's deadline, ends
 * the process with MEG_EPEER and a message that names the operation and the group.
 */
#ifndef MEG_COMM_COMM_H
#define MEG_COMM_COMM_H
#include <stdbool.h>
#include <stdint.h>
#include "base/err.h"
#include "tensor/dtype.h"

MEG_BEGIN_DECLS

enum meg_reduce_op { MEG_REDUCE_SUM, MEG_REDUCE_MAX };

struct meg_comm;
struct meg_work;

/* Each starts an operation; NULL is one that is done already. */
struct meg_comm_ops {
    /* buf [n] becomes the sum or maximum over ranks. */
    struct meg_work *(*all_reduce)(struct meg_comm *c, void *buf, int64_t n, enum meg_dtype t, enum meg_reduce_op how);
    /* out [n] = part rank of the sum or maximum of in [size*n]; out may be that part of in. */
    struct meg_work *(*reduce_scatter)(struct meg_comm *c, void *out, const void *in, int64_t n, enum meg_dtype t,
                                       enum meg_reduce_op how);
    /* out [size*n] = in [n] of all ranks, in rank order; in may be its own part of out. */
    struct meg_work *(*all_gather)(struct meg_comm *c, void *out, const void *in, int64_t n, enum meg_dtype t);
    /* Part i of in [size*n] goes to rank i, and part i of out comes from it; out is not in. */
    struct meg_work *(*all_to_all)(struct meg_comm *c, void *out, const void *in, int64_t n, enum meg_dtype t);
    /* buf [n] of rank root goes to all. */
    struct meg_work *(*broadcast)(struct meg_comm *c, void *buf, int64_t n, enum meg_dtype t, int root);
    /* Between two ranks of the group; messages from one to another arrive in order. */
    struct meg_work *(*send)(struct meg_comm *c, const void *buf, int64_t n, enum meg_dtype t, int to);
    struct meg_work *(*recv)(struct meg_comm *c, void *buf, int64_t n, enum meg_dtype t, int from);
    /* Until every rank is here. */
    struct meg_work *(*barrier)(struct meg_comm *c);

    void (*wait)(struct meg_work *w);
    bool (*test)(struct meg_work *w); /* without waiting: take it on, and say whether it is done */
    struct meg_comm *(*split)(struct meg_comm *c, int color, const char *name);
    void (*set_deadline)(struct meg_comm *c, double seconds);
    void (*close)(struct meg_comm *c);
};

struct meg_comm {
    const struct meg_comm_ops *op;
    const char *group; /* "world", "tp", …: in messages */
    int rank, size;
    double sent; /* bytes this rank has sent so far, counted as below */
};

/*
 * Bytes that a rank sends in a collective of a group of size ranks, as rings move them (Patarasuk and Yuan
 * 2009) whatever the library below does: an all-reduce of nbytes; a reduce-scatter, all-gather or
 * all-to-all with parts of nbytes.  A broadcast counts as its buffer, a message as itself at the sender, a
 * barrier as nothing.
 */
static inline double meg_comm_volume_all_reduce(int64_t size, double nbytes)
{
    return 2 * (double)(size - 1) * nbytes / (double)size;
}

static inline double meg_comm_volume_sharded(int64_t size, double nbytes)
{
    return (double)(size - 1) * nbytes;
}

/* The group of one. */
extern struct meg_comm meg_comm_self;

/* Elements of an all-reduce that a group moves at a time, fewer than an int counts. */
enum { MEG_ALL_REDUCE_CHUNK = 16 << 20 }; /* of each rank's part, up to 64 ranks */

static inline int64_t meg_all_reduce_chunk(int64_t size)
{
    return (size < 64 ? size : 64) * MEG_ALL_REDUCE_CHUNK;
}

/*
 * Host memory that a group of several ranks keeps for what arrives, the most of what its collectives take: parts of an
 * all-reduce of n elements, some at a time; of a reduce-scatter with parts of n all that a rank is sent.
 */
static inline double meg_comm_workspace_all_reduce(int64_t size, double n, enum meg_dtype t)
{
    const double most = (double)meg_all_reduce_chunk(size);

    return size > 1 ? (n < most ? n : most) * (double)meg_dtype_size(t) : 0;
}

static inline double meg_comm_workspace_reduce_scatter(int64_t size, double n, enum meg_dtype t)
{
    return size > 1 ? (double)size * n * (double)meg_dtype_size(t) : 0;
}

/* Wait for what a start gave; NULL is done. */
static inline void meg_comm_wait(struct meg_comm *c, struct meg_work *w)
{
    if (w)
        c->op->wait(w);
}

/* Seconds this process has spent in waits of all groups, for others or for data to move. */
double meg_comm_waited_s(void);

/*
 * Take a started operation on while computing goes on; once it is done *w is NULL.  Reductions and gathers
 * move on in tests and waits only, and of one group one at a time may be under way.
 */
static inline void meg_comm_test(struct meg_comm *c, struct meg_work **w)
{
    if (*w && c->op->test(*w))
        *w = NULL;
}

/* Start and wait. */
static inline void meg_all_reduce(struct meg_comm *c, void *buf, int64_t n, enum meg_dtype t, enum meg_reduce_op how)
{
    meg_comm_wait(c, c->op->all_reduce(c, buf, n, t, how));
}

static inline void meg_broadcast(struct meg_comm *c, void *buf, int64_t n, enum meg_dtype t, int root)
{
    meg_comm_wait(c, c->op->broadcast(c, buf, n, t, root));
}

static inline void meg_barrier(struct meg_comm *c)
{
    meg_comm_wait(c, c->op->barrier(c));
}

/*
 * The ranks of this run.  meg_comm_open looks for a launcher (mpirun, srun; torchrun where none of these
 * is) in the environment and joins its ranks, over MPI, of torchrun over NCCL; without one the world is
 * meg_comm_self.  A launcher of several ranks and no MPI, or NCCL, in this build is MEG_EUSAGE.
 * torchrun's ranks meet in meg_watchdog_open, which comes before the first operation.
 *   launcher  who started the ranks, as a word for people: "mpirun (Open MPI)", "none"
 * A group is cut out of the world by meg_comm_split: ranks that give the same color are a group, in the
 * order of their world ranks; every rank of the world calls it.  name is kept, not copied.
 */
struct meg_comm_world {
    struct meg_comm *world;
    const char *launcher;
};
int meg_comm_open(struct meg_comm_world *w, struct meg_err *e);
/* How long a wait of this group, and of those split from it later, may take; ten minutes at first. */
void meg_comm_set_timeout(struct meg_comm *c, double seconds);
struct meg_comm *meg_comm_split(struct meg_comm *world, int color, const char *name);
/* Ends what open and split made; the world last.  Accepts NULL and meg_comm_self. */
void meg_comm_close(struct meg_comm *c);

MEG_END_DECLS
#endif
