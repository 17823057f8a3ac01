/*
 * double.h - a test double of NCCL and of the CUDA runtime, for machines without a GPU: the functions that lib/comm,
 * lib/cuda and the test device (device.c) call, for processes with a common $TMPDIR.  Device memory is host memory,
 * which contains NaN at first, and is often inaccessible while no task runs.  A thread executes the streams in a random
 * order within what their events allow; kernels are host functions.  Ranks communicate over Unix sockets, whose path is
 * the NCCL id.  Sums are taken in rank order, in f32 for bf16 and f16.
 *
 * It ends the process with a message and SIGABRT where the real libraries hang, corrupt data or fail only sometimes:
 *   - two streams access memory, one of them writes, and no event orders them (vector clocks; the accesses of kernels
 *     other than copies and collectives are known only by the addresses in their arguments)
 *   - the host accesses device memory (not always detected), or a kernel accesses memory that is not allocated
 *   - memory is freed before the host knows that a collective on it is complete
 *   - a copy between host and device in the wrong direction, or to pageable memory, for which the host would wait
 *   - pinned memory changes between the call that queues a copy from it and the copy
 *   - ranks disagree on the operation, type, count, reduction or root of a collective
 *   - a communicator is used on two streams, before its last call is complete, or after ncclCommFinalize
 *   - memory of ncclMemAlloc that is freed by cudaFree or before it is deregistered, or a registration of other memory
 *   - ncclMemFree of memory that a task uses which the host does not know to be complete
 *   - a reduce-scatter or all-gather without registered memory, if the communicator has any; a collective with
 *     registered memory on only some ranks, for only one operand, or at different offsets
 *   - groups of calls that are not closed, and communicators that are not destroyed at exit
 *   - while a stream is captured: an allocation; an event, a collective or a copy between host and device on the stream
 *   - a graph accesses memory that was freed, or is destroyed before the host knows that its last launch is complete
 * ncclCommAbort appends a line to the file that MEG_DOUBLE_ABORTS names.  Collectives on registered memory append their
 * names to the file of MEG_DOUBLE_REGISTERED.  In the file of MEG_DOUBLE_LAUNCHES, each launch of a graph is a line
 * "graph", and each launch of a kernel that is not in a graph is a line "kernel".
 *
 * Environment variables simulate other machines and failures:
 *   MEG_DOUBLE_DRIVER=VERSION    the version of CUDA that the driver supports, such as 12040; 0 if there is no driver
 *   MEG_DOUBLE_DRIVER_ERROR=E    the driver fails with error E, a number of cudaError_t
 *   MEG_DOUBLE_GPUS=N            the number of GPUs
 *   MEG_DOUBLE_CC=N              compute capability, such as 75
 *   MEG_DOUBLE_MEMORY=MIB        memory of a GPU
 *   MEG_DOUBLE_OTHER_MEMORY=MIB  another process allocates this memory after the first call of cudaMemGetInfo
 *   MEG_DOUBLE_FAILURE=N:E       the N-th kernel of the process fails with error E, such as 700 (an illegal address).
 *                                The kernel and all later tasks are not executed, and later calls return E.  With
 *                                CUDA_LAUNCH_BLOCKING=1, the launch of the kernel returns E
 */
#ifndef TESTS_NCCL_DOUBLE_H
#define TESTS_NCCL_DOUBLE_H

#include <nccl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#define LIBRARY "NCCL"
#include "common.h"

extern pthread_mutex_t lock; /* protects streams, events, memory and communicators */

/* ---- gpu.c: the driver, properties and failures ---- */

extern volatile cudaError_t gpu_error; /* the error of the kernel that failed, or cudaSuccess */

/* Return from a function of the runtime with the error of an earlier kernel, if one has failed. */
#define RETURN_GPU_ERROR()                                                                                             \
    do {                                                                                                               \
        if (gpu_error)                                                                                                 \
            return gpu_error;                                                                                          \
    } while (0)

/* Let the GPU fail with an error.  This function replaces the kernel that MEG_DOUBLE_FAILURE selects. */
void fail_gpu(void *error);

/* Return the error of the next kernel that is launched, or cudaSuccess.  Each call counts as a launch. */
cudaError_t next_kernel_error(void);

/* ---- runtime.c: streams, events, copies and kernels; the caller holds the lock ---- */

enum { MAX_STREAMS = 256 };

/*
 * A vector clock of a stream, of the last record of an event, or of the host.  The first at[i] tasks of stream i are
 * known to precede the next task of the stream, the end of the record, or the next call of the host.
 */
struct clock {
    uint64_t at[MAX_STREAMS];
};

struct task {
    struct task *next;
    enum { RECORD, WAIT, FUNCTION, COPY, SET, LAUNCH } type;
    struct CUevent_st *event;
    uint64_t number; /* of the record */
    void (*fn)(void *arg);
    void (*release)(void *arg); /* called after fn; NULL: a graph owns arg */
    void *arg, *to;
    const void *from;
    void *bytes; /* of a copy from the host: the bytes when the task was queued; else NULL */
    size_t n;
    int value;
    struct launch *launch;
};

struct CUstream_st {
    struct CUstream_st *next;
    struct task *first, *last;
    int index;
    uint64_t seq;
    struct clock clock;
    struct CUgraph_st *capture; /* graph to which tasks are added instead of being queued; NULL: none */
};

extern int nstreams; /* number of streams that were created */

/* Queue a task on a stream, whose clock begin_task has advanced, or add it to the graph that is captured. */
void push_task(struct CUstream_st *s, struct task t);

/*
 * Wait until stream s is idle or, if s is NULL, until all streams are idle.  Return early if the GPU fails.  The lock
 * is released during the wait.
 */
void wait_idle(const struct CUstream_st *s);

/* ---- memory.c: allocation and the order of accesses; the caller holds the lock ---- */

enum mode { READ, WRITE, TOUCH }; /* TOUCH: a kernel reads or writes; conflicts only with WRITE */

extern struct clock host_clock; /* tasks that the host knows to be complete */

/* Return the device memory or pinned memory that contains n bytes at p, or NULL. */
const struct memory *memory_of(const void *p, size_t n);

/* Return whether n bytes at p are device memory. */
bool is_device(const void *p, size_t n);

/*
 * Make all device memory accessible or inaccessible.  It is often inaccessible while no task runs, so that an access by
 * the host is detected.
 */
void set_accessible(bool is_accessible);

/* Set each element of vector clock `to` to the maximum of both, so that `to` also follows what precedes `from`. */
void merge_clock(struct clock *to, const struct clock *from);

/* Remove the accesses that the host knows to be complete: whatever it queues from now on is ordered after them. */
void forget_complete(void);

/* Advance the clock of a stream for its next task, which is after all tasks that the host knows to be complete. */
void begin_task(struct CUstream_st *s);

/*
 * Fail unless an access of stream s is ordered after those of other streams with which it conflicts, and record it.
 * The record replaces an earlier one of s for the same memory, unless only the earlier one is a write.  If s is
 * captured, add the access to the graph instead.
 */
void check_access(struct CUstream_st *s, const void *p, size_t n, enum mode mode, bool is_collective, const char *what);

/* Add change to the number of registrations of the memory that begins at p, which must be of ncclMemAlloc. */
void add_registration(const void *p, size_t n, int change);

/* ---- graph.c: graphs; the caller holds the lock ---- */

extern int ncaptures; /* number of streams that are captured */

void capture_task(struct CUgraph_st *g, struct task t);
void capture_access(struct CUgraph_st *g, const void *p, size_t n, enum mode mode, const char *what);

/* Append a line to the file that MEG_DOUBLE_LAUNCHES names, if the variable is set. */
void log_launch(const char *what);

/* ---- nccl.c and transfer.c: communicators and their operations; the caller holds the lock ---- */

enum call { NO_CALL, ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST, MESSAGES };

/*
 * The header of each message.  The receiver compares it with the header of its own call, and the process ends with a
 * message if they differ.  All ranks of a collective send the same header.
 */
struct header {
    uint32_t magic, call, type, op;
    int32_t root;
    uint64_t count;
    int64_t registered_at; /* offset of the larger operand in registered memory; -1 if it is not registered */
};

struct transfer {
    bool is_send;
    int peer;
    char *p;
    size_t nbytes, moved, header_moved;
    struct header header;
};

/* One NCCL call, or the calls of a group. */
struct launch {
    struct ncclComm *comm;
    cudaStream_t stream;
    struct header header;
    struct transfer *transfer;
    int n;
    char *parts; /* [size] received parts of a reduction, or NULL */
    char *out;
    const char *own; /* this rank's part of a reduction or gather */
    bool is_started;
};

struct ncclComm {
    char name[90];
    int rank, size, listen_fd, nsplits, polls, *fd;
    bool is_joined, is_in_progress, is_finalized, is_aborted;
    ncclResult_t error;
    cudaStream_t stream;                /* of the first call */
    struct launch *launch;              /* call in progress: it is not in the stream yet */
    struct ncclComm *child, **child_at; /* of the split in progress */
    int nqueued;                        /* launches in the stream */
    struct registration *registrations; /* memory of ncclCommRegister */
};

/* Return the size of an ncclDataType_t in bytes. */
size_t size_of(uint32_t type);

/* Continue an operation without blocking, and free it when it is complete; return whether it is. */
bool progress_launch(struct launch *l);

#endif
