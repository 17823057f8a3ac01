/*
 * comm.h - communicators: a group of ranks and the collectives over it, called through tables of function pointers.
 *
 * The transports are MPI, NCCL (tensors in GPU memory), the watchdog's store (host collectives of ranks that torchrun
 * started) and self.  A run without a launcher uses self: one rank, and collectives that only copy.
 *
 * One call starts an operation, and a second call waits for it, so that operations overlap with computation.  The first
 * call returns a handle, which `wait` or a successful `test` frees: every handle needs exactly one of them.  Until
 * then, the caller must not access the buffers of the operation.  All ranks of a group call its collectives in the same
 * order.  The functions of meg_comm.op take buffers in device memory of the backend in use.  The functions of
 * meg_comm.host take buffers in host memory and NULL as stream, and their waits block the host.  Buffers may overlap
 * only if a comment says so.  Counts are in elements and may exceed INT32_MAX.
 *
 * Reductions combine the values of the ranks in rank order, and accumulate bf16 and f16 in f32.  The result therefore
 * does not depend on the transport.  NCCL is the exception: it selects the order and the precision of its sums, and
 * whether a maximum with a NaN is a NaN.  If a peer is lost, or an operation takes longer than the group's timeout, the
 * process ends with MEG_EPEER and a message.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "base/err.h"
#include "base/mem.h"
#include "tensor/dtype.h"
#include "watchdog/watchdog.h"

enum meg_reduce_op { MEG_REDUCE_SUM, MEG_REDUCE_MAX };

struct meg_comm;
struct meg_device;
struct meg_nccl;
struct meg_stream;
struct meg_work;

/* Collectives and messages, on the buffers `out` and `in` of a struct meg_comm_call. */
enum meg_comm_op {
    MEG_ALL_REDUCE,     /* out [n] = sum or maximum of out over the ranks */
    MEG_REDUCE_SCATTER, /* out [n] = part `rank` of the sum or maximum of in [size*n]; `out` may be that part of `in` */
    MEG_ALL_GATHER,     /* out [size*n] = in [n] of all ranks, in rank order; `in` may be this rank's part of `out` */
    MEG_ALL_TO_ALL,     /* send part i of in [size*n] to rank i, receive part i of out from it; they must not overlap */
    MEG_BROADCAST,      /* out [n] = out [n] of rank `peer` */
    MEG_SEND,           /* send in [n] to rank `peer`, which receives messages from this rank in the order of sending */
    MEG_RECV,           /* receive out [n] from rank `peer` */
    MEG_BARRIER         /* complete when every rank has started it; meg_comm.host only */
};

/* The arguments of an operation; those that it does not use are zero. */
struct meg_comm_call {
    enum meg_comm_op op;
    void *out;
    const void *in;
    int64_t n;
    enum meg_dtype dtype;
    enum meg_reduce_op reduce;
    int peer;
};

struct meg_comm_ops {
    /*
     * Queue an operation, which starts when the work queued on st before it is complete.  Return a handle to wait for,
     * or NULL if the operation is already complete.  Work that is queued on st after `wait` starts after the operation.
     */
    struct meg_work *(*start)(struct meg_comm *c, struct meg_stream *st, const struct meg_comm_call *x);
    void (*wait)(struct meg_work *w, struct meg_stream *st); /* frees w */
    bool (*test)(struct meg_work *w); /* progress w without blocking; if it is complete, free w and return true */

    /*
     * Allocate device memory and register it with each of n groups, so that NCCL can access it directly in collectives
     * (user buffer registration).  NCCL's rule: if one rank of a group passes registered memory to a collective, all
     * ranks do, for both operands, and the larger operand is at the same offset on all ranks.  The contents are
     * undefined.  Return NULL if the memory is exhausted.  `release` deregisters and frees the memory of `alloc`, given
     * the same groups, which must still be open.  It blocks the host until their collectives are done; work on other
     * streams must be complete.  Both are NULL without NCCL.
     */
    void *(*alloc)(struct meg_comm *const *groups, int n, size_t nbytes);
    void (*release)(struct meg_comm *const *groups, int n, void *p);

    struct meg_comm *(*split)(struct meg_comm *c, int color, const char *name);
    void (*set_timeout)(struct meg_comm *c, double seconds);
    void (*close)(struct meg_comm *c);
};

struct meg_comm {
    const struct meg_comm_ops *op;   /* for tensors in device memory; see meg_comm_open_tensors */
    const struct meg_comm_ops *host; /* all-reduce, all-gather, broadcast and barrier of values in host memory */
    bool has_host_tensors;           /* the transport exchanges tensors in host memory */
    const char *name;                /* name in messages, such as "world" or "tensor-parallel" */
    int rank, size;
    struct meg_nccl *nccl;         /* NCCL communicators of `op`; NULL if op uses no NCCL */
    double nbytes_sent;            /* bytes that this rank has sent, counted by the formulas below */
    struct meg_watchdog *watchdog; /* watchdog of the world communicator; NULL in others, or if there is no watchdog */
};

/*
 * Return the bytes that each rank sends in a collective of `size` ranks.  The formulas assume the ring algorithms
 * (Patarasuk and Yuan 2009), whichever algorithm the transport uses.
 *   all-reduce of nbytes                                       2 (size - 1) / size * nbytes
 *   reduce-scatter, all-gather, all-to-all of nbytes per part  (size - 1) * nbytes
 *   broadcast                                                  nbytes
 *   point-to-point message                                     nbytes, counted at the sender
 *   barrier                                                    0
 */
static inline double meg_comm_volume_all_reduce(int64_t size, double nbytes)
{
    return 2 * (double)(size - 1) * nbytes / (double)size;
}

static inline double meg_comm_volume_sharded(int64_t size, double nbytes)
{
    return (double)(size - 1) * nbytes;
}

/* Return the bytes that each rank of a group of `size` ranks sends in an operation. */
double meg_comm_volume(const struct meg_comm_call *x, int64_t size);

/* Return the name of an operation in messages, such as "all-reduce". */
const char *meg_comm_op_name(enum meg_comm_op op);

/* The communicator of a run with one rank. */
extern struct meg_comm meg_comm_self;

/* An all-reduce over MPI of at most this many bytes is an all-gather, followed by a reduction on each rank. */
enum { MEG_ALL_REDUCE_SMALL = 4096 };

/* A larger all-reduce over MPI is split into chunks of at most min(size, 64) times this many elements. */
enum { MEG_ALL_REDUCE_CHUNK = 16 << 20 };

static inline int64_t meg_all_reduce_chunk(int64_t size)
{
    return (size < 64 ? size : 64) * MEG_ALL_REDUCE_CHUNK;
}

/*
 * Estimate the bytes of host memory that a rank allocates for received parts in a group of `size` ranks over MPI.  An
 * all-reduce of n elements requires at most one chunk, rounded up to equal parts.  A small all-reduce requires the
 * buffers of all ranks.  A reduce-scatter of n elements per part requires `size` parts.  A group keeps its largest
 * allocation.
 */
static inline double meg_comm_workspace_all_reduce(int64_t size, double n, enum meg_dtype t)
{
    const double chunk = (double)meg_all_reduce_chunk(size), nbytes = n * (double)meg_dtype_size(t);

    if (nbytes <= MEG_ALL_REDUCE_SMALL)
        return size > 1 ? (double)size * nbytes : 0;
    return size > 1 ? (n < chunk ? n : chunk) * (double)meg_dtype_size(t) : 0;
}

static inline double meg_comm_workspace_reduce_scatter(int64_t size, double n, enum meg_dtype t)
{
    return size > 1 ? (double)size * n * (double)meg_dtype_size(t) : 0;
}

/*
 * Make work that is queued on st later wait for operation w, and free w.  Over MPI, block the host until w is complete.
 * If w is NULL, the operation is already complete.
 */
static inline void meg_comm_wait(struct meg_comm *c, struct meg_stream *st, struct meg_work *w)
{
    if (w)
        c->op->wait(w, st);
}

/* Return the time in seconds that this process has spent waiting for operations, summed over all groups. */
double meg_comm_waited_s(void);

/*
 * Progress operation *w without blocking.  If it is complete, free it and set *w to NULL.  Do nothing if *w is NULL.
 * Over MPI, reductions and gathers progress only in meg_comm_test and meg_comm_wait.  A group may have only one
 * reduction or gather in progress.
 */
static inline void meg_comm_test(struct meg_comm *c, struct meg_work **w)
{
    if (*w && c->op->test(*w))
        *w = NULL;
}

/* Queue an operation on st: it starts after the work queued on st so far, and later work waits for it. */
static inline void meg_comm_run(struct meg_comm *c, struct meg_stream *st, const struct meg_comm_call *x)
{
    meg_comm_wait(c, st, c->op->start(c, st, x));
}

static inline void meg_all_reduce(struct meg_comm *c, struct meg_stream *st, void *buf, int64_t n, enum meg_dtype t,
                                  enum meg_reduce_op op)
{
    meg_comm_run(c, st, &(struct meg_comm_call){ MEG_ALL_REDUCE, .out = buf, .n = n, .dtype = t, .reduce = op });
}

static inline void meg_reduce_scatter(struct meg_comm *c, struct meg_stream *st, void *out, const void *in, int64_t n,
                                      enum meg_dtype t, enum meg_reduce_op op)
{
    meg_comm_run(c, st, &(struct meg_comm_call){ MEG_REDUCE_SCATTER, out, in, n, t, op, 0 });
}

static inline void meg_all_gather(struct meg_comm *c, struct meg_stream *st, void *out, const void *in, int64_t n,
                                  enum meg_dtype t)
{
    meg_comm_run(c, st, &(struct meg_comm_call){ MEG_ALL_GATHER, .out = out, .in = in, .n = n, .dtype = t });
}

static inline void meg_all_to_all(struct meg_comm *c, struct meg_stream *st, void *out, const void *in, int64_t n,
                                  enum meg_dtype t)
{
    meg_comm_run(c, st, &(struct meg_comm_call){ MEG_ALL_TO_ALL, .out = out, .in = in, .n = n, .dtype = t });
}

/* ---- host collectives: small values in host memory; block the host ---- */

static inline void meg_host_run(struct meg_comm *c, const struct meg_comm_call *x)
{
    struct meg_work *w = c->host->start(c, NULL, x);

    if (w)
        c->host->wait(w, NULL);
}

static inline void meg_host_all_reduce(struct meg_comm *c, void *buf, int64_t n, enum meg_dtype t,
                                       enum meg_reduce_op op)
{
    meg_host_run(c, &(struct meg_comm_call){ MEG_ALL_REDUCE, .out = buf, .n = n, .dtype = t, .reduce = op });
}

static inline void meg_host_all_gather(struct meg_comm *c, void *out, const void *in, int64_t n, enum meg_dtype t)
{
    meg_host_run(c, &(struct meg_comm_call){ MEG_ALL_GATHER, .out = out, .in = in, .n = n, .dtype = t });
}

static inline void meg_host_broadcast(struct meg_comm *c, void *buf, int64_t n, enum meg_dtype t, int root)
{
    meg_host_run(c, &(struct meg_comm_call){ MEG_BROADCAST, .out = buf, .n = n, .dtype = t, .peer = root });
}

/* Broadcast a text from rank `root`; on the other ranks, *text must be { 0 }. */
void meg_host_broadcast_str(struct meg_comm *c, struct meg_str *text, int root);

static inline void meg_host_barrier(struct meg_comm *c)
{
    meg_host_run(c, &(struct meg_comm_call){ MEG_BARRIER, .dtype = MEG_DTYPE_I32 });
}

/* The communicator of all ranks of a run, and the launcher that started the ranks. */
struct meg_comm_world {
    struct meg_comm *world;
    const char *launcher; /* name of the program that started the ranks, such as "mpirun (Open MPI)", or "none" */
    bool has_rendezvous;  /* torchrun started the ranks, and meg_comm_watchdog_open connects them */
    struct meg_rendezvous rendezvous; /* address at which the ranks connect if has_rendezvous */
};

/*
 * Detect the launcher (mpirun, srun or torchrun) from the environment and join its ranks, over MPI or, for torchrun,
 * over the connections of the watchdog.  Without a launcher, or if it started one rank, the world is meg_comm_self.
 * Return MEG_EUSAGE if the environment is inconsistent, or if an MPI launcher started several ranks and this build
 * lacks MPI.  Return MEG_EFAIL if MPI cannot be initialized.  Ranks of torchrun must call meg_comm_watchdog_open before
 * their first operation.
 */
int meg_comm_open(struct meg_comm_world *w, struct meg_err *e);
/*
 * Prepare meg_comm.op of the world communicator, and of groups split from it later, for tensors in the memory of device
 * d; collective.  With one rank, do nothing.
 *
 * Either all or none of the ranks must use a GPU; otherwise, return MEG_EUSAGE.  Several ranks with tensors in host
 * memory require MPI: under torchrun, return MEG_EUSAGE.  Several ranks with tensors in GPU memory require NCCL, an
 * open watchdog and a GPU for each rank.  Return MEG_EUSAGE if this build has no NCCL or two ranks use one GPU, and
 * MEG_EFAIL if NCCL cannot be loaded or the watchdog is not open.  If only some ranks cannot load NCCL, the other ranks
 * return 0 without effect, so the caller must agree on the result with the callers on the other ranks.  d must stay
 * open until the communicators are closed.
 */
int meg_comm_open_tensors(struct meg_comm *world, const struct meg_device *d, struct meg_err *e);
/* Start the watchdog of the world communicator; collective.  See meg_watchdog_open for failures. */
void meg_comm_watchdog_open(struct meg_comm_world *w, double timeout_s);
/*
 * Stop the watchdog of the world communicator, if it was started; collective.  Communicators other than the world must
 * not be used during this call.
 */
void meg_comm_watchdog_close(struct meg_comm_world *w);
/* Set the timeout of waits of this group, and of groups split from it later; default: ten minutes. */
void meg_comm_set_timeout(struct meg_comm *c, double seconds);
/*
 * Split the world communicator; collective over all its ranks.  Ranks that pass the same color form a group, in the
 * order of their world ranks.  `name` is borrowed until the group is closed.
 */
struct meg_comm *meg_comm_split(struct meg_comm *world, int color, const char *name);
/* Close a communicator; the world must be closed last.  Do nothing for NULL and meg_comm_self. */
void meg_comm_close(struct meg_comm *c);
