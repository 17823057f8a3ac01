/*
 * A test double of NCCL and of the CUDA runtime, for machines without a GPU: the functions that lib/comm, lib/cuda and
 * the test device (device.c) call, for processes with a common $TMPDIR.  Device memory is host memory, which contains
 * NaN at first, and is often inaccessible while no task runs.  A thread executes the streams in a random order within
 * what their events allow; kernels are host functions.  Ranks communicate over Unix sockets, whose path is the NCCL id.
 * Sums are taken in rank order, in f32 for bf16 and f16.
 *
 * It ends the process with a message and SIGABRT where the real libraries hang, corrupt data or fail only sometimes:
 *   - two streams access memory, one of them writes, and no event orders them (vector clocks; the accesses of kernels
 *     other than copies and collectives are known only by the addresses in their arguments)
 *   - the host accesses device memory (detected at some of these times), or a kernel memory that is not allocated
 *   - memory is freed before the host knows that a collective on it is complete
 *   - a copy between host and device in the wrong direction, or to pageable memory, for which the host would wait
 *   - ranks disagree on the operation, type, count, reduction or root of a collective
 *   - a communicator is used on two streams, before its last call is complete, or after ncclCommFinalize
 *   - groups of calls that are not closed, and communicators that are not destroyed at exit
 * ncclCommAbort appends a line to the file that MEG_DOUBLE_ABORTS names.
 *
 * Environment variables simulate other machines and failures:
 *   MEG_DOUBLE_DRIVER=VERSION    the version of CUDA that the driver supports, such as 12040; 0 if there is no driver
 *   MEG_DOUBLE_DRIVER_ERROR=E    the driver fails with error E, a number of cudaError_t
 *   MEG_DOUBLE_GPUS=N            the number of GPUs
 *   MEG_DOUBLE_CC=N              compute capability, such as 75
 *   MEG_DOUBLE_MEMORY=MIB        memory of a GPU
 *   MEG_DOUBLE_OTHER_MEMORY=MIB  another process allocates this memory after the first call of cudaMemGetInfo
 *   MEG_DOUBLE_FAILURE=N:E       the N-th kernel of the process fails with error E, as an illegal address (700): it and
 *                                all later tasks are not executed, and later calls return E.  With
 *                                CUDA_LAUNCH_BLOCKING=1, its launch returns E
 */
#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <nccl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include "tensor/half.h"

#define API __attribute__((visibility("default")))

enum { MAX_STREAMS = 256 };

/* A vector clock.  Element i is the number of tasks of stream i that are known to precede. */
struct clock {
    uint64_t at[MAX_STREAMS];
};

enum mode { READ, WRITE, TOUCH }; /* TOUCH: a kernel that reads or writes */

struct access {
    struct access *next;
    const char *p;
    size_t n;
    enum mode mode;
    bool is_collective;
    int stream;
    uint64_t seq;
    const char *what;
};

enum call { NO_CALL, ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST, MESSAGES };

/*
 * The header of each message.  The receiver compares it with the header of its own call, and the process ends with a
 * message if they differ.  All ranks of a collective send the same header.
 */
struct header {
    uint32_t magic, call, type, op;
    int32_t root;
    uint64_t count;
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

struct task {
    struct task *next;
    enum { RECORD, WAIT, FUNCTION, COPY, SET, LAUNCH } type;
    struct CUevent_st *event;
    uint64_t number; /* of the record */
    void (*fn)(void *arg);
    void *arg, *to;
    const void *from;
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
};

struct CUevent_st {
    struct CUevent_st *next;
    uint64_t recorded, done; /* number of the last record that was queued, and that was executed */
    struct clock clock;      /* of the last record */
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
};

struct memory {
    struct memory *next;
    char *p;
    size_t n;
    bool is_pinned; /* host memory of cudaMallocHost */
};

/* Return the number in an environment variable, or `otherwise`. */
static long variable(const char *name, long otherwise)
{
    const char *text = getenv(name);

    return text ? strtol(text, NULL, 10) : otherwise;
}

/* ---- failures of a GPU ---- */

static volatile cudaError_t gpu_error; /* of a kernel */

/* Return the error of an earlier kernel from a function of the runtime. */
#define RETURN_GPU_ERROR()                                                                                             \
    do {                                                                                                               \
        if (gpu_error)                                                                                                 \
            return gpu_error;                                                                                          \
    } while (0)

/* The kernel that MEG_DOUBLE_FAILURE chooses. */
static void fail_gpu(void *error)
{
    gpu_error = (cudaError_t)(intptr_t)error;
}

/* Return the error of the next kernel. */
static cudaError_t next_kernel_error(void)
{
    static long n;
    const char *error = getenv("MEG_DOUBLE_FAILURE");

    return error && ++n == strtol(error, NULL, 10) ? (cudaError_t)strtol(strchr(error, ':') + 1, NULL, 10)
                                                   : cudaSuccess;
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct CUstream_st *streams;
static int nstreams, ncomms, depth;
static struct CUevent_st *events;
static struct memory *memory;
static struct access *accesses;
static struct clock host_clock; /* tasks that the host knows to be complete */
static struct launch *group;    /* of the open group of calls */
static uint64_t random_state;

static void fail(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));
static void fail(const char *fmt, ...)
{
    char text[500];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    dprintf(STDERR_FILENO, "NCCL double: %s\n", text);
    abort();
}

static const struct memory *memory_of(const void *p, size_t n)
{
    const struct memory *m = memory;

    while (m && ((const char *)p < m->p || (const char *)p + n > m->p + m->n))
        m = m->next;
    return m;
}

static bool is_device(const void *p, size_t n)
{
    const struct memory *m = memory_of(p, n);

    return m && !m->is_pinned;
}

/* ---- device memory; the caller holds the lock ----------------------------------------------------- */

/*
 * Blocks are allocated one after the other from a reserved range of addresses, which are not used again.  A block ends
 * at the end of a page, and is followed by an inaccessible page.
 */
enum { PAGE = 4096, ALIGNMENT = 256 };
#define RESERVED ((size_t)1 << 40)
static struct {
    char *base;
    size_t used;
    bool is_accessible;
    struct sigaction old_action;
} device;

static size_t round_up(size_t n, size_t unit)
{
    return (n + unit - 1) / unit * unit;
}

/* Return the first page of a block, and set *n to the size of its pages in bytes. */
static char *pages_of(const struct memory *m, size_t *n)
{
    char *const first = m->p - (uintptr_t)m->p % PAGE;

    *n = round_up((size_t)(m->p - first) + m->n, PAGE);
    return first;
}

static void protect(const struct memory *m, bool is_accessible)
{
    size_t n;
    char *const first = pages_of(m, &n);

    if (mprotect(first, n, is_accessible ? PROT_READ | PROT_WRITE : PROT_NONE))
        fail("mprotect fails: %s", strerror(errno));
}

/* Let tasks, but not the host, access device memory. */
static void set_accessible(bool is_accessible)
{
    if (device.is_accessible == is_accessible)
        return;
    device.is_accessible = is_accessible;
    for (const struct memory *m = memory; m; m = m->next)
        if (!m->is_pinned)
            protect(m, is_accessible);
}

static void on_fault(int signal_number, siginfo_t *info, void *context)
{
    const size_t at = (size_t)((char *)info->si_addr - device.base);

    (void)signal_number, (void)context;
    if (at < RESERVED)
        fail("the host accesses device memory, or a kernel accesses memory that is not allocated");
    sigaction(SIGSEGV, &device.old_action, NULL); /* the instruction is repeated */
}

static void device_reserve(void)
{
    struct sigaction action = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO };

    device.base = mmap(NULL, RESERVED, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (device.base == MAP_FAILED)
        fail("mmap fails: %s", strerror(errno));
    sigaction(SIGSEGV, &action, &device.old_action);
}

static char *device_alloc(size_t n)
{
    const size_t data = round_up(n ? n : 1, ALIGNMENT), pages = round_up(data, PAGE);
    char *p;

    if (!device.base)
        device_reserve();
    if (pages + PAGE > RESERVED - device.used)
        fail("%zu bytes of device memory", n);
    p = device.base + device.used + pages - data;
    device.used += pages + PAGE;
    return p;
}

/* ---- order of accesses; the caller holds the lock ------------------------------------------------- */

static void merge(struct clock *to, const struct clock *from)
{
    for (int i = 0; i < nstreams; i++)
        if (to->at[i] < from->at[i])
            to->at[i] = from->at[i];
}

/* Remove the accesses that the host knows to be complete: whatever it queues from now on is ordered after them. */
static void forget(void)
{
    for (struct access **link = &accesses; *link;) {
        struct access *a = *link;

        if (a->seq > host_clock.at[a->stream]) {
            link = &a->next;
            continue;
        }
        *link = a->next;
        free(a);
    }
}

/* Remove the accesses to memory that is freed. */
static void forget_memory(const struct memory *m)
{
    for (struct access **link = &accesses; *link;) {
        struct access *a = *link;

        if (a->p >= m->p + m->n || m->p >= a->p + a->n) {
            link = &a->next;
            continue;
        }
        *link = a->next;
        free(a);
    }
}

/* Advance the clock of a stream for its next task, which is after all tasks that the host knows to be complete. */
static void begin(struct CUstream_st *s)
{
    merge(&s->clock, &host_clock);
    s->clock.at[s->index] = ++s->seq;
}

/*
 * Fail unless an access of stream s is ordered after those of other streams with which it conflicts, and record it.  It
 * replaces an earlier one of s that conflicts with nothing else.
 */
static void check_access(struct CUstream_st *s, const void *p, size_t n, enum mode mode, bool is_collective,
                         const char *what)
{
    struct access *record = NULL;

    if (!n)
        return;
    for (struct access *a = accesses; a; a = a->next) {
        if (a->p < (const char *)p + n && (const char *)p < a->p + a->n && a->stream != s->index &&
            (mode == WRITE || a->mode == WRITE) && s->clock.at[a->stream] < a->seq)
            fail("%s of %zu bytes on stream %d is not ordered after %s on stream %d", what, n, s->index, a->what,
                 a->stream);
        if (a->p == p && a->n == n && a->stream == s->index && a->is_collective == is_collective &&
            (mode == WRITE || a->mode != WRITE))
            record = a;
    }
    if (!record) {
        record = calloc(1, sizeof *record);
        record->next = accesses;
        accesses = record;
    }
    *record = (struct access){ record->next, p, n, mode, is_collective, s->index, s->seq, what };
}

/* ---- streams -------------------------------------------------------------------------------------- */

static void *run_streams(void *arg);

static void push(struct CUstream_st *s, struct task t)
{
    static bool is_running;
    struct task *copy = malloc(sizeof *copy);
    pthread_t thread;

    if (!is_running) {
        is_running = true;
        random_state = (uint64_t)getpid() * 0x9e3779b97f4a7c15u + 1;
        pthread_create(&thread, NULL, run_streams, NULL);
    }
    *copy = t;
    if (s->first)
        s->last->next = copy;
    else
        s->first = copy;
    s->last = copy;
    pthread_cond_broadcast(&changed);
}

static uint64_t next_random(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

static bool progress_launch(struct launch *l);

/* Execute a task; return whether it is finished.  Functions, copies and memsets run without the lock. */
static bool run_task(struct task *t)
{
    switch (t->type) {
    case RECORD: t->event->done = t->number; return true;
    case WAIT: return t->event->done >= t->number;
    case LAUNCH: return next_random() % 4 != 0 && progress_launch(t->launch);
    case FUNCTION:
    case COPY:
    case SET: break;
    }
    pthread_mutex_unlock(&lock);
    if (t->type == FUNCTION)
        t->fn(t->arg);
    else if (t->type == COPY)
        memcpy(t->to, t->from, t->n);
    else
        memset(t->to, t->value, t->n);
    pthread_mutex_lock(&lock);
    return true;
}

/*
 * Try the first task of each stream until one finishes; return whether one did.  Begin with a stream that changes
 * seldom.  Set *is_launched to whether an NCCL operation was tried.
 */
static bool run_one(bool *is_launched)
{
    static int favorite;

    *is_launched = false;
    if (gpu_error)
        return false;
    if (next_random() % 32 == 0)
        favorite = (int)(next_random() % (uint64_t)nstreams);
    for (int pass = 0; pass < 2; pass++)
        for (struct CUstream_st *s = streams; s; s = s->next) {
            struct task *t = s->first;

            if (!t || (s->index >= favorite) != (pass == 0))
                continue;
            *is_launched |= t->type == LAUNCH;
            if (!run_task(t))
                continue;
            s->first = t->next;
            free(t);
            return true;
        }
    return false;
}

static void *run_streams(void *arg)
{
    (void)arg;
    pthread_mutex_lock(&lock);
    for (;;) {
        bool is_launched;

        set_accessible(true);
        if (run_one(&is_launched))
            continue;
        if (is_launched) {
            pthread_mutex_unlock(&lock);
            usleep(20);
            pthread_mutex_lock(&lock);
        } else {
            if (next_random() % 16 == 0) /* seldom, because it takes time */
                set_accessible(false);
            pthread_cond_wait(&changed, &lock);
        }
    }
    return NULL;
}

API cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned int flags)
{
    RETURN_GPU_ERROR();
    if (flags != cudaStreamNonBlocking)
        fail("a stream that synchronizes with the default stream");
    *s = calloc(1, sizeof **s);
    pthread_mutex_lock(&lock);
    (*s)->index = nstreams++;
    (*s)->next = streams;
    streams = *s;
    if (nstreams > MAX_STREAMS)
        fail("more than %d streams", MAX_STREAMS);
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

static bool is_idle(const struct CUstream_st *s)
{
    if (s)
        return !s->first;
    for (s = streams; s; s = s->next)
        if (s->first)
            return false;
    return true;
}

/* Wait until a stream, or all streams if s is NULL, are idle, or the GPU fails.  The caller holds the lock. */
static void wait_idle(const struct CUstream_st *s)
{
    while (!is_idle(s) && !gpu_error) {
        pthread_mutex_unlock(&lock);
        usleep(20);
        pthread_mutex_lock(&lock);
    }
}

/* Streams do not synchronize with the default stream, on which nothing is queued. */
API cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    pthread_mutex_lock(&lock);
    if (s) {
        wait_idle(s);
        merge(&host_clock, &s->clock);
        forget();
    }
    pthread_mutex_unlock(&lock);
    return gpu_error;
}

/* Return the error of an earlier kernel.  Callers do not use other results. */
API cudaError_t cudaStreamQuery(cudaStream_t s)
{
    (void)s;
    RETURN_GPU_ERROR();
    return cudaErrorNotReady;
}

API cudaError_t cudaDeviceSynchronize(void)
{
    pthread_mutex_lock(&lock);
    wait_idle(NULL);
    for (const struct CUstream_st *s = streams; s; s = s->next)
        merge(&host_clock, &s->clock);
    forget();
    pthread_mutex_unlock(&lock);
    return gpu_error;
}

API cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    struct CUstream_st **link = &streams;

    RETURN_GPU_ERROR();
    pthread_mutex_lock(&lock);
    if (s->first)
        fail("a stream is destroyed while work is queued on it");
    while (*link != s)
        link = &(*link)->next;
    *link = s->next;
    free(s);
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

/* ---- events --------------------------------------------------------------------------------------- */

API cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned int flags)
{
    RETURN_GPU_ERROR();
    (void)flags;
    *e = calloc(1, sizeof **e);
    pthread_mutex_lock(&lock);
    (*e)->next = events;
    events = *e;
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

/* The event stays in the list: queued tasks may refer to it. */
API cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    (void)e;
    return cudaSuccess;
}

API cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
    RETURN_GPU_ERROR();
    pthread_mutex_lock(&lock);
    begin(s);
    e->clock = s->clock;
    push(s, (struct task){ .type = RECORD, .event = e, .number = ++e->recorded });
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

API cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned int flags)
{
    RETURN_GPU_ERROR();
    (void)flags;
    pthread_mutex_lock(&lock);
    begin(s);
    merge(&s->clock, &e->clock);
    push(s, (struct task){ .type = WAIT, .event = e, .number = e->recorded });
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

API cudaError_t cudaEventQuery(cudaEvent_t e)
{
    bool is_done;

    RETURN_GPU_ERROR();
    pthread_mutex_lock(&lock);
    is_done = e->done == e->recorded;
    if (is_done) {
        merge(&host_clock, &e->clock);
        forget();
    }
    pthread_mutex_unlock(&lock);
    if (!is_done)
        usleep(10); /* let the streams run */
    return is_done ? cudaSuccess : cudaErrorNotReady;
}

API cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
    cudaError_t error;

    while ((error = cudaEventQuery(e)) == cudaErrorNotReady)
        ;
    return error;
}

API cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t begin, cudaEvent_t end)
{
    (void)begin, (void)end;
    *ms = 1;
    return cudaSuccess;
}

API cudaError_t cudaStreamIsCapturing(cudaStream_t s, enum cudaStreamCaptureStatus *status)
{
    RETURN_GPU_ERROR();
    (void)s;
    *status = cudaStreamCaptureStatusNone;
    return cudaSuccess;
}

/* ---- memory, copies and kernels ------------------------------------------------------------------- */

static size_t other_nbytes; /* memory of another process */

static void *memory_new(size_t n, bool is_pinned)
{
    struct memory *m = malloc(sizeof *m);

    pthread_mutex_lock(&lock);
    *m = (struct memory){ memory, is_pinned ? aligned_alloc(ALIGNMENT, round_up(n + 1, ALIGNMENT)) : device_alloc(n), n,
                          is_pinned };
    if (!is_pinned)
        protect(m, true);
    memset(m->p, 0xff, n);
    if (!is_pinned && !device.is_accessible)
        protect(m, false);
    memory = m;
    pthread_mutex_unlock(&lock);
    return m->p;
}

/*
 * Free memory when stream s, or all streams if s is NULL, are idle, but fail if a collective may still access it.  To
 * wait for more streams than the real function would stop a rank that other ranks wait for.
 */
static void memory_free(void *p, bool is_pinned, struct CUstream_st *s)
{
    struct memory **link = &memory, *m;
    size_t n;
    char *first;

    if (!p)
        return;
    pthread_mutex_lock(&lock);
    while (*link && (*link)->p != p)
        link = &(*link)->next;
    m = *link;
    if (!m || m->is_pinned != is_pinned)
        fail("free of memory that is not %s", is_pinned ? "pinned" : "device memory");
    for (const struct access *a = accesses; a; a = a->next)
        if (a->is_collective && a->p < m->p + m->n && m->p < a->p + a->n)
            fail("memory is freed before the host knows that %s on stream %d is complete", a->what, a->stream);
    if (s) {
        begin(s);
        check_access(s, m->p, m->n, WRITE, false, "cudaFreeAsync");
    }
    wait_idle(s);
    forget_memory(m);
    link = &memory; /* other threads may have changed the list */
    while (*link != m)
        link = &(*link)->next;
    *link = m->next;
    if (is_pinned) {
        memset(m->p, 0xff, m->n);
        free(m->p);
    } else {
        protect(m, false);
        first = pages_of(m, &n);
        madvise(first, n, MADV_DONTNEED);
    }
    free(m);
    pthread_mutex_unlock(&lock);
}

/* Return the memory of the GPU that is not allocated, in bytes. */
static size_t free_nbytes(void)
{
    const size_t total = (size_t)variable("MEG_DOUBLE_MEMORY", 1 << 20) << 20;
    size_t used = other_nbytes;

    pthread_mutex_lock(&lock);
    for (const struct memory *m = memory; m; m = m->next)
        used += m->is_pinned ? 0 : m->n;
    pthread_mutex_unlock(&lock);
    return used < total ? total - used : 0;
}

API cudaError_t cudaMalloc(void **p, size_t n)
{
    RETURN_GPU_ERROR();
    if (n > free_nbytes())
        return cudaErrorMemoryAllocation;
    *p = memory_new(n, false);
    return cudaSuccess;
}

API cudaError_t cudaFree(void *p)
{
    RETURN_GPU_ERROR();
    memory_free(p, false, NULL);
    return cudaSuccess;
}

API cudaError_t cudaMallocHost(void **p, size_t n)
{
    RETURN_GPU_ERROR();
    *p = memory_new(n, true);
    return cudaSuccess;
}

API cudaError_t cudaFreeHost(void *p)
{
    RETURN_GPU_ERROR();
    memory_free(p, true, NULL);
    return cudaSuccess;
}

API cudaError_t cudaMallocAsync(void **p, size_t n, cudaStream_t s)
{
    (void)s;
    return cudaMalloc(p, n);
}

API cudaError_t cudaFreeAsync(void *p, cudaStream_t s)
{
    RETURN_GPU_ERROR();
    memory_free(p, false, s);
    return cudaSuccess;
}

API cudaError_t cudaMemGetInfo(size_t *available, size_t *total)
{
    RETURN_GPU_ERROR();
    *available = free_nbytes();
    *total = (size_t)variable("MEG_DOUBLE_MEMORY", 1 << 20) << 20;
    other_nbytes = (size_t)variable("MEG_DOUBLE_OTHER_MEMORY", 0) << 20;
    return cudaSuccess;
}

/* Set memory that no stream uses yet. */
API cudaError_t cudaMemset(void *to, int value, size_t n)
{
    bool was_accessible;

    RETURN_GPU_ERROR();
    pthread_mutex_lock(&lock);
    if (n && !is_device(to, n))
        fail("a memset of %zu bytes that are not device memory", n);
    for (const struct access *a = accesses; a; a = a->next)
        if (a->p < (const char *)to + n && (const char *)to < a->p + a->n)
            fail("a memset on the default stream is not ordered after %s on stream %d", a->what, a->stream);
    was_accessible = device.is_accessible;
    set_accessible(true);
    memset(to, value, n);
    set_accessible(was_accessible);
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

/* A copy from pageable memory reads the memory at once. */
API cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, enum cudaMemcpyKind kind, cudaStream_t s)
{
    const void *staged = NULL;

    RETURN_GPU_ERROR();
    pthread_mutex_lock(&lock);
    if (n && (is_device(to, n) != (kind != cudaMemcpyDeviceToHost) ||
              is_device(from, n) != (kind != cudaMemcpyHostToDevice)))
        fail("a copy of %zu bytes does not match cudaMemcpyKind %d", n, (int)kind);
    if (n && kind == cudaMemcpyDeviceToHost) {
        if (!memory_of(to, n))
            fail("a copy of %zu bytes to pageable memory, which blocks the host", n);
        memset(to, 0xff, n);
    }
    if (kind == cudaMemcpyHostToDevice && !memory_of(from, n))
        from = staged = memcpy(malloc(n + 1), from, n);
    begin(s);
    if (!staged)
        check_access(s, from, n, READ, false, "a copy from memory");
    check_access(s, to, n, WRITE, false, "a copy to memory");
    push(s, (struct task){ .type = COPY, .to = to, .from = from, .n = n });
    if (staged)
        push(s, (struct task){ .type = FUNCTION, .fn = free, .arg = (void *)staged });
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

API cudaError_t cudaMemsetAsync(void *to, int value, size_t n, cudaStream_t s)
{
    RETURN_GPU_ERROR();
    pthread_mutex_lock(&lock);
    if (n && !is_device(to, n))
        fail("a memset of %zu bytes that are not device memory", n);
    begin(s);
    check_access(s, to, n, WRITE, false, "a memset");
    push(s, (struct task){ .type = SET, .to = to, .value = value, .n = n });
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

API cudaError_t cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t fn, void *arg)
{
    const bool is_blocking = variable("CUDA_LAUNCH_BLOCKING", 0) != 0;
    cudaError_t error;

    RETURN_GPU_ERROR();
    if ((error = next_kernel_error())) {
        fn = fail_gpu;
        arg = (void *)(intptr_t)error;
    }
    pthread_mutex_lock(&lock);
    begin(s);
    push(s, (struct task){ .type = FUNCTION, .fn = fn, .arg = arg });
    if (is_blocking)
        wait_idle(s);
    pthread_mutex_unlock(&lock);
    return is_blocking ? gpu_error : cudaSuccess;
}

/*
 * Declare that the next host function launched on s, which replaces a kernel, accesses p.  Ignored if p is not in
 * device memory.
 */
API void meg_double_touch(cudaStream_t s, const void *p);
API void meg_double_touch(cudaStream_t s, const void *p)
{
    pthread_mutex_lock(&lock);
    if (is_device(p, 1)) {
        begin(s);
        check_access(s, p, 1, TOUCH, false, "a kernel");
    }
    pthread_mutex_unlock(&lock);
}

/* Whether a pointer is to device memory, or to its end. */
API int meg_double_is_device(const void *p);
API int meg_double_is_device(const void *p)
{
    bool is;

    pthread_mutex_lock(&lock);
    is = is_device(p, 0);
    pthread_mutex_unlock(&lock);
    return is;
}

/* ---- the device ----------------------------------------------------------------------------------- */

API cudaError_t cudaDriverGetVersion(int *version)
{
    *version = (int)variable("MEG_DOUBLE_DRIVER", CUDART_VERSION);
    return cudaSuccess;
}

API cudaError_t cudaGetDeviceCount(int *n)
{
    *n = (int)variable("MEG_DOUBLE_GPUS", 64); /* one for each rank */
    if (variable("MEG_DOUBLE_DRIVER", CUDART_VERSION) < CUDART_VERSION)
        return cudaErrorInsufficientDriver;
    return *n ? (cudaError_t)variable("MEG_DOUBLE_DRIVER_ERROR", cudaSuccess) : cudaErrorNoDevice;
}

API cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int index)
{
    memset(prop, 0, sizeof *prop);
    snprintf(prop->name, sizeof prop->name, "double");
    prop->uuid.bytes[0] = (char)index;
    prop->major = (int)variable("MEG_DOUBLE_CC", 90) / 10;
    prop->minor = (int)variable("MEG_DOUBLE_CC", 90) % 10;
    prop->multiProcessorCount = 132;
    prop->totalGlobalMem = (size_t)1 << 40;
    return cudaSuccess;
}

API cudaError_t cudaSetDevice(int index)
{
    (void)index;
    return cudaSuccess;
}

API cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

API cudaError_t cudaGetLastError(void)
{
    return gpu_error;
}

API const char *cudaGetErrorString(cudaError_t error)
{
    return error == cudaErrorNotReady ? "not ready" : "an error";
}

API const char *cudaGetErrorName(cudaError_t error)
{
    switch (error) {
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorECCUncorrectable: return "cudaErrorECCUncorrectable";
    case cudaErrorNvlinkUncorrectable: return "cudaErrorNvlinkUncorrectable";
    case cudaErrorIllegalAddress: return "cudaErrorIllegalAddress";
    case cudaErrorLaunchFailure: return "cudaErrorLaunchFailure";
    case cudaErrorSystemNotReady: return "cudaErrorSystemNotReady";
    default: return "an error";
    }
}

/* ---- transfers between ranks; the caller holds the lock --------------------------------------------- */

/*
 * Send or receive as many of n bytes at p as possible without blocking, and add them to *moved.  Return false if the
 * peer has exited.
 */
static bool move_bytes(int fd, bool is_send, char *p, size_t n, size_t *moved)
{
    while (*moved < n) {
        const ssize_t m = is_send ? send(fd, p + *moved, n - *moved, MSG_DONTWAIT | MSG_NOSIGNAL)
                                  : recv(fd, p + *moved, n - *moved, MSG_DONTWAIT);

        if (m < 0 && (errno == EAGAIN || errno == EINTR))
            return true;
        if (m <= 0)
            return false;
        *moved += (size_t)m;
    }
    return true;
}

static void progress_transfer(struct ncclComm *c, struct transfer *t)
{
    const struct header want = t->header;
    struct header got = want;
    bool is_alive = true;

    if (t->header_moved < sizeof got) {
        is_alive = move_bytes(c->fd[t->peer], t->is_send, (char *)&got, sizeof got, &t->header_moved);
        if (!t->is_send && t->header_moved == sizeof got && memcmp(&want, &got, sizeof want) != 0)
            fail("rank %d calls operation %u on %" PRIu64 " elements of type %u (op %u, root %d), rank %d operation %u "
                 "on %" PRIu64 " of type %u (op %u, root %d)",
                 c->rank, want.call, want.count, want.type, want.op, want.root, t->peer, got.call, got.count, got.type,
                 got.op, got.root);
        if (t->header_moved && t->header_moved < sizeof got)
            fail("a header was transferred in parts");
    }
    if (is_alive && t->header_moved == sizeof got)
        is_alive = move_bytes(c->fd[t->peer], t->is_send, t->p, t->nbytes, &t->moved);
    if (!is_alive)
        c->error = ncclRemoteError;
}

static size_t size_of(uint32_t type)
{
    static const size_t size[ncclNumTypes] = { 1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1 };

    return size[type];
}

#define REDUCE(type, acc_type, load, store)                                                                            \
    for (uint64_t i = 0; i < h->count; i++) {                                                                          \
        acc_type a = load(((const type *)l->parts)[i]);                                                                \
                                                                                                                       \
        for (int r = 1; r < l->comm->size; r++) {                                                                      \
            const acc_type b = load(((const type *)l->parts)[(uint64_t)r * h->count + i]);                             \
                                                                                                                       \
            a = h->op == ncclSum ? a + b : b > a ? b : a;                                                              \
        }                                                                                                              \
        ((type *)l->out)[i] = store(a);                                                                                \
    }

static void reduce(const struct launch *l)
{
    const struct header *h = &l->header;

    switch (h->type) {
    case ncclFloat32: REDUCE(float, float, , ) break;
    case ncclFloat64: REDUCE(double, double, , ) break;
    case ncclBfloat16: REDUCE(uint16_t, float, meg_from_bf16, meg_to_bf16) break;
    case ncclFloat16: REDUCE(uint16_t, float, meg_from_f16, meg_to_f16) break;
    case ncclInt32: REDUCE(int32_t, int32_t, , ) break;
    case ncclInt64: REDUCE(int64_t, int64_t, , ) break;
    default: fail("a reduction of type %u", h->type);
    }
}

/* Copy this rank's part, which it does not send to itself. */
static void copy_own(struct launch *l)
{
    const size_t nbytes = (size_t)l->header.count * size_of(l->header.type);
    char *to = (l->parts ? l->parts : l->out) + (size_t)l->comm->rank * nbytes;

    if (l->header.call != ALL_REDUCE && l->header.call != REDUCE_SCATTER && l->header.call != ALL_GATHER)
        return;
    if (to != l->own)
        memmove(to, l->own, nbytes);
}

/* Copy the messages of a group from this rank to itself. */
static void copy_self(struct launch *l)
{
    struct transfer *from = NULL, *to = NULL;

    for (int i = 0; i < l->n; i++)
        if (l->transfer[i].peer == l->comm->rank)
            *(l->transfer[i].is_send ? &from : &to) = &l->transfer[i];
    if (!from != !to)
        fail("a message to the own rank without its counterpart");
    if (from)
        memcpy(to->p, from->p, from->nbytes);
}

static bool progress_launch(struct launch *l)
{
    bool is_done = true;

    if (l->comm->is_aborted)
        return false;
    if (!l->is_started) {
        copy_own(l);
        copy_self(l);
        l->is_started = true;
    }
    for (int i = 0; i < l->n; i++) {
        struct transfer *t = &l->transfer[i];

        if (t->peer == l->comm->rank)
            continue;
        if (t->header_moved < sizeof t->header || t->moved < t->nbytes)
            progress_transfer(l->comm, t);
        is_done &= t->header_moved == sizeof t->header && t->moved == t->nbytes;
    }
    if (!is_done)
        return false;
    if (l->parts)
        reduce(l);
    l->comm->nqueued--;
    free(l->parts);
    free(l->transfer);
    free(l);
    return true;
}

/* ---- communicators -------------------------------------------------------------------------------- */

static struct sockaddr_un address_of(const struct ncclComm *c, int rank)
{
    struct sockaddr_un a = { .sun_family = AF_UNIX };

    snprintf(a.sun_path, sizeof a.sun_path, "%s.%d", c->name, rank);
    return a;
}

static struct ncclComm *comm_new(const char *name, int rank, int size)
{
    struct ncclComm *c = calloc(1, sizeof *c);
    struct sockaddr_un a;

    if (size < 1 || rank < 0 || rank >= size || !*name)
        fail("a communicator of rank %d of %d", rank, size);
    snprintf(c->name, sizeof c->name, "%s", name);
    c->rank = rank;
    c->size = size;
    c->fd = malloc((size_t)size * sizeof *c->fd);
    for (int r = 0; r < size; r++)
        c->fd[r] = -1;
    a = address_of(c, rank);
    c->listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (bind(c->listen_fd, (struct sockaddr *)&a, sizeof a) < 0 || listen(c->listen_fd, size) < 0)
        fail("%s: %s", a.sun_path, strerror(errno));
    ncomms++;
    return c;
}

/* Connect to the lower ranks and accept the higher ones, without blocking. */
static void connect_peers(struct ncclComm *c)
{
    int n = 0, fd, rank;

    for (int r = 0; r < c->rank; r++) {
        const struct sockaddr_un a = address_of(c, r);

        if (c->fd[r] >= 0)
            continue;
        fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (connect(fd, (const struct sockaddr *)&a, sizeof a) < 0)
            close(fd);
        else if (write(c->fd[r] = fd, &c->rank, sizeof c->rank) != sizeof c->rank)
            fail("%s: %s", a.sun_path, strerror(errno));
    }
    while ((fd = accept4(c->listen_fd, NULL, NULL, SOCK_CLOEXEC)) >= 0) {
        if (read(fd, &rank, sizeof rank) != sizeof rank || rank <= c->rank || rank >= c->size || c->fd[rank] >= 0)
            fail("an invalid rank connects, or one connects twice");
        c->fd[rank] = fd;
    }
    for (int r = 0; r < c->size; r++)
        n += c->fd[r] >= 0;
    c->is_joined = n == c->size - 1;
    if (c->is_joined) {
        unlink(address_of(c, c->rank).sun_path);
        close(c->listen_fd);
    }
}

/* Check that a call on c may begin. */
static void check_call(const struct ncclComm *c)
{
    if (c->is_aborted)
        fail("a communicator is used after ncclCommAbort");
    if (!c->is_joined || c->is_in_progress || c->is_finalized)
        fail("a communicator is used while a call is in progress, or after ncclCommFinalize");
}

API const char *ncclGetErrorString(ncclResult_t r)
{
    return r == ncclRemoteError ? "remote process exited" : "an error";
}

API ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    static int made;
    const char *tmp = getenv("TMPDIR");

    memset(id, 0, sizeof *id);
    snprintf(id->internal, 64, "%s/nccl.%d.%d", tmp ? tmp : "/tmp", (int)getpid(), made++);
    return ncclSuccess;
}

API ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int size, ncclUniqueId id, int rank, ncclConfig_t *config)
{
    if (config->magic != 0xcafebeef || config->blocking != 0)
        fail("a communicator with blocking = %d", config->blocking);
    pthread_mutex_lock(&lock);
    *comm = comm_new(id.internal, rank, size);
    pthread_mutex_unlock(&lock);
    return ncclInProgress;
}

/* Block until all ranks of c have called the function: exchange colors over the sockets. */
API ncclResult_t ncclCommSplit(ncclComm_t c, int color, int key, ncclComm_t *new, ncclConfig_t *config)
{
    int own[2] = { color, key }, other[2], rank = 0, size = 1;
    char name[sizeof c->name];

    pthread_mutex_lock(&lock);
    check_call(c);
    if (config->blocking != 0 || c->nqueued || key != c->rank || color < 0)
        fail("a split with color %d and key %d", color, key);
    c->is_in_progress = true;
    c->nsplits++;
    pthread_mutex_unlock(&lock);
    for (int r = 0; r < c->size; r++)
        if (r != c->rank && send(c->fd[r], own, sizeof own, MSG_NOSIGNAL) != sizeof own)
            c->error = ncclRemoteError;
    for (int r = 0; r < c->size && !c->error; r++) {
        if (r == c->rank)
            continue;
        if (recv(c->fd[r], other, sizeof other, MSG_WAITALL) != sizeof other) {
            c->error = ncclRemoteError;
        } else {
            rank += other[0] == color && other[1] < key;
            size += other[0] == color;
        }
    }
    pthread_mutex_lock(&lock);
    snprintf(name, sizeof name, "%.60s.s%d.%d", c->name, c->nsplits, color);
    c->child = c->error ? NULL : comm_new(name, rank, size);
    c->child_at = new;
    *new = NULL;
    pthread_mutex_unlock(&lock);
    return ncclInProgress;
}

/* Complete the call in progress: put its operation into the stream, or return the communicator of a split. */
static void complete_call(struct ncclComm *c)
{
    struct launch *l = c->launch;

    c->is_in_progress = false;
    if (c->child)
        *c->child_at = c->child;
    c->child = NULL;
    if (!l)
        return;
    c->launch = NULL;
    c->nqueued++;
    begin(l->stream);
    for (int i = 0; i < l->n; i++)
        if (!l->parts || l->transfer[i].is_send)
            check_access(l->stream, l->transfer[i].p, l->transfer[i].nbytes, l->transfer[i].is_send ? READ : WRITE,
                         true, "a collective");
    if (l->out && l->header.count)
        check_access(l->stream, l->out,
                     (l->header.call == ALL_GATHER ? (size_t)c->size : 1) * l->header.count * size_of(l->header.type),
                     WRITE, true, "a collective");
    push(l->stream, (struct task){ .type = LAUNCH, .launch = l });
}

/* A call is reported as in progress at the first polls, so that callers that do not poll are detected. */
API ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t *now)
{
    pthread_mutex_lock(&lock);
    if (!c->is_joined && !c->is_aborted)
        connect_peers(c);
    *now = c->error ? c->error : c->is_in_progress || !c->is_joined ? ncclInProgress : ncclSuccess;
    if (c->is_in_progress && c->is_joined && ++c->polls % 3 == 0) {
        complete_call(c);
        *now = c->error;
    }
    pthread_mutex_unlock(&lock);
    return ncclSuccess;
}

API ncclResult_t ncclCommFinalize(ncclComm_t c)
{
    pthread_mutex_lock(&lock);
    check_call(c);
    if (c->nqueued)
        fail("a communicator is finalized before its operations are complete");
    c->is_finalized = c->is_in_progress = true;
    pthread_mutex_unlock(&lock);
    return ncclInProgress;
}

API ncclResult_t ncclCommDestroy(ncclComm_t c)
{
    pthread_mutex_lock(&lock);
    if (!c->is_finalized || c->is_in_progress)
        fail("a communicator is destroyed before it is finalized");
    for (int r = 0; r < c->size; r++)
        if (c->fd[r] >= 0)
            close(c->fd[r]);
    free(c->fd);
    free(c);
    ncomms--;
    pthread_mutex_unlock(&lock);
    return ncclSuccess;
}

API ncclResult_t ncclCommAbort(ncclComm_t c)
{
    const char *path = getenv("MEG_DOUBLE_ABORTS");
    FILE *f = path ? fopen(path, "a") : NULL;

    if (f) {
        fprintf(f, "%d\n", (int)getpid());
        fclose(f);
    }
    pthread_mutex_lock(&lock);
    c->is_aborted = true;
    ncomms--;
    pthread_mutex_unlock(&lock);
    return ncclSuccess;
}

/* ---- collectives ---------------------------------------------------------------------------------- */

API ncclResult_t ncclGroupStart(void)
{
    if (depth++)
        fail("nested groups");
    return ncclSuccess;
}

/* Begin a call: it continues until ncclCommGetAsyncError has reported that it is complete. */
static struct launch *launch_new(struct ncclComm *c, cudaStream_t s, struct header h)
{
    struct launch *l = calloc(1, sizeof *l);

    check_call(c);
    if (c->stream && c->stream != s)
        fail("a communicator is used on two streams");
    c->stream = s;
    h.magic = 0x6d6567;
    *l = (struct launch){ .comm = c, .stream = s, .header = h };
    l->transfer = calloc(2 * (size_t)c->size, sizeof *l->transfer);
    return l;
}

static void add_transfer(struct launch *l, bool is_send, int peer, const void *p, size_t nbytes)
{
    if (nbytes && !is_device(p, nbytes) && (!l->parts || is_send))
        fail("a collective on memory that is not device memory");
    l->transfer[l->n++] =
        (struct transfer){ .is_send = is_send, .peer = peer, .p = (char *)p, .nbytes = nbytes, .header = l->header };
}

/*
 * Launch a collective.  This rank sends nsend bytes to each other rank: to rank r, those at in + r * distance.  In a
 * broadcast, nroot bytes are received from the root.
 */
static ncclResult_t collective(struct ncclComm *c, cudaStream_t s, struct header h, const void *in, size_t distance,
                               size_t nsend, void *out, size_t nroot, bool is_reduction)
{
    const size_t nbytes = (size_t)h.count * size_of(h.type);
    struct launch *l;

    pthread_mutex_lock(&lock);
    if (depth)
        fail("a collective in a group of calls");
    l = launch_new(c, s, h);
    l->out = out;
    l->own = (const char *)in + distance * (size_t)c->rank;
    if (nbytes && !is_device(out, h.call == ALL_GATHER ? nbytes * (size_t)c->size : nbytes))
        fail("the output of a collective is not device memory");
    if (is_reduction)
        l->parts = malloc(nbytes * (size_t)c->size + 1);
    for (int r = 0; r < c->size; r++) {
        const size_t nrecv = h.call == BROADCAST ? (r == h.root ? nroot : 0) : nbytes;
        char *to = h.call == BROADCAST ? out : (l->parts ? l->parts : (char *)out) + (size_t)r * nbytes;

        if (r == c->rank)
            continue;
        add_transfer(l, true, r, (const char *)in + distance * (size_t)r, nsend);
        add_transfer(l, false, r, to, nrecv);
    }
    c->launch = l;
    c->is_in_progress = true;
    pthread_mutex_unlock(&lock);
    return ncclInProgress;
}

API ncclResult_t ncclAllReduce(const void *in, void *out, size_t n, ncclDataType_t t, ncclRedOp_t op, ncclComm_t c,
                               cudaStream_t s)
{
    const struct header h = { .call = ALL_REDUCE, .type = t, .op = op, .count = n };

    return collective(c, s, h, in, 0, n * size_of(t), out, 0, true);
}

API ncclResult_t ncclReduceScatter(const void *in, void *out, size_t n, ncclDataType_t t, ncclRedOp_t op, ncclComm_t c,
                                   cudaStream_t s)
{
    const struct header h = { .call = REDUCE_SCATTER, .type = t, .op = op, .count = n };

    return collective(c, s, h, in, n * size_of(t), n * size_of(t), out, 0, true);
}

API ncclResult_t ncclAllGather(const void *in, void *out, size_t n, ncclDataType_t t, ncclComm_t c, cudaStream_t s)
{
    const struct header h = { .call = ALL_GATHER, .type = t, .count = n };

    return collective(c, s, h, in, 0, n * size_of(t), out, 0, false);
}

API ncclResult_t ncclBroadcast(const void *in, void *out, size_t n, ncclDataType_t t, int root, ncclComm_t c,
                               cudaStream_t s)
{
    const struct header h = { .call = BROADCAST, .type = t, .root = root, .count = n };

    if (in != out || root < 0 || root >= c->size)
        fail("a broadcast of root %d", root);
    return collective(c, s, h, in, 0, root == c->rank ? n * size_of(t) : 0, out, n * size_of(t), false);
}

static ncclResult_t message(bool is_send, const void *p, size_t n, ncclDataType_t t, int peer, ncclComm_t c,
                            cudaStream_t s)
{
    const struct header h = { .call = MESSAGES, .type = t, .count = n };
    const bool is_alone = depth == 0;

    if (is_alone)
        ncclGroupStart();
    pthread_mutex_lock(&lock);
    if (peer < 0 || peer >= c->size || (is_alone && peer == c->rank))
        fail("a message of rank %d to rank %d of %d", c->rank, peer, c->size);
    if (!group)
        group = launch_new(c, s, h);
    if (group->comm != c || group->stream != s)
        fail("a group of calls on two communicators or streams");
    for (int i = 0; i < group->n; i++)
        if (group->transfer[i].peer == peer && group->transfer[i].is_send == is_send)
            fail("two messages to one rank in a group");
    add_transfer(group, is_send, peer, p, n * size_of(t));
    pthread_mutex_unlock(&lock);
    return is_alone ? ncclGroupEnd() : ncclSuccess;
}

API ncclResult_t ncclSend(const void *p, size_t n, ncclDataType_t t, int peer, ncclComm_t c, cudaStream_t s)
{
    return message(true, p, n, t, peer, c, s);
}

API ncclResult_t ncclRecv(void *p, size_t n, ncclDataType_t t, int peer, ncclComm_t c, cudaStream_t s)
{
    return message(false, p, n, t, peer, c, s);
}

API ncclResult_t ncclGroupEnd(void)
{
    pthread_mutex_lock(&lock);
    if (--depth || !group)
        fail("the end of a group that is not open, or empty");
    group->comm->launch = group;
    group->comm->is_in_progress = true;
    group = NULL;
    pthread_mutex_unlock(&lock);
    return ncclInProgress;
}

__attribute__((destructor)) static void check_released(void)
{
    if (ncomms || depth)
        fail("%d communicators are not destroyed", ncomms);
}
