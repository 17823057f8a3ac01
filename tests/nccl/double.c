/*
 * A test double of NCCL and the CUDA runtime, for machines without a GPU: the functions that lib/comm calls, for
 * processes with a common $TMPDIR.  Device memory is host memory, kernels progress whenever a stream is queried, and
 * ranks communicate over Unix sockets, whose path is the NCCL id.
 *
 * It is strict where the real libraries hang, corrupt data or fail only sometimes: host pointers instead of device
 * memory, copies on a busy stream, peers that disagree on type or count, groups that are not closed, a communicator
 * used before its last call is complete, resources not released at exit.  Each ends the process with a message and
 * SIGABRT. MEG_DOUBLE_DEVICES is the number of devices (default 16).
 */
#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <nccl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))

struct header {
    uint32_t type, magic;
    uint64_t count;
};

struct op {
    bool is_send;
    char *p;
    size_t nbytes, moved; /* of the payload */
    struct header header;
    size_t header_moved;
    int peer;
};

struct launch {
    struct ncclComm *comm;
    struct op *op;
    int n;
    struct launch *next;
};

struct CUstream_st {
    struct launch *first;
    struct CUstream_st *next;
};

struct ncclComm {
    char name[80];
    int rank, size, listen_fd, *fd;
    bool is_joined, is_in_progress, is_finalized;
    ncclResult_t error;
};

struct memory {
    char *p;
    size_t n;
    struct memory *next;
};

static struct CUstream_st *streams;
static struct memory *memory;
static int depth, comms;
static struct launch *pending; /* of the open group */
static struct CUstream_st *pending_stream;

static void fail(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));
static void fail(const char *fmt, ...)
{
    va_list ap;

    fputs("NCCL double: ", stderr);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
    abort();
}

static bool is_device(const void *p, size_t n)
{
    for (const struct memory *m = memory; m; m = m->next)
        if ((const char *)p >= m->p && (const char *)p + n <= m->p + m->n)
            return true;
    return false;
}

/* ---- transfers ------------------------------------------------------------------------------------- */

/* Send or receive as many of n bytes at p as possible without blocking; false: the peer has exited. */
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

static bool is_done(const struct op *o)
{
    return o->header_moved == sizeof o->header && o->moved == o->nbytes;
}

static void progress_op(struct ncclComm *c, struct op *o)
{
    struct header want = o->header;
    bool is_alive = true;

    if (o->header_moved < sizeof o->header) {
        is_alive = move_bytes(c->fd[o->peer], o->is_send, (char *)&o->header, sizeof o->header, &o->header_moved);
        if (o->header_moved == sizeof o->header && memcmp(&want, &o->header, sizeof want) != 0)
            fail("rank %d receives %" PRIu64 " elements of type %u from rank %d, which sends %" PRIu64 " of type %u",
                 c->rank, want.count, want.type, o->peer, o->header.count, o->header.type);
        if (!o->is_send && o->header_moved < sizeof o->header) {
            if (o->header_moved)
                fail("a header was received in parts");
            o->header = want;
        }
    }
    if (is_alive && o->header_moved == sizeof o->header)
        is_alive = move_bytes(c->fd[o->peer], o->is_send, o->p, o->nbytes, &o->moved);
    if (!is_alive)
        c->error = ncclRemoteError;
}

static void progress_stream(struct CUstream_st *s)
{
    while (s->first) {
        struct launch *l = s->first;
        bool all_done = true;

        for (int i = 0; i < l->n; i++) {
            if (!is_done(&l->op[i]))
                progress_op(l->comm, &l->op[i]);
            all_done &= is_done(&l->op[i]);
        }
        if (!all_done)
            return;
        s->first = l->next;
        free(l->op);
        free(l);
    }
}

static void need_idle(const struct CUstream_st *s, const char *what)
{
    if (s->first)
        fail("%s on a stream where a kernel waits for a peer", what);
}

/* ---- CUDA --------------------------------------------------------------------------------------- */

API cudaError_t cudaGetDeviceCount(int *n)
{
    const char *text = getenv("MEG_DOUBLE_DEVICES");

    *n = text ? atoi(text) : 16;
    return *n ? cudaSuccess : cudaErrorNoDevice;
}

API cudaError_t cudaSetDevice(int device)
{
    return device < 16 ? cudaSuccess : cudaErrorInvalidDevice;
}

API const char *cudaGetErrorString(cudaError_t e)
{
    return e == cudaErrorNoDevice ? "no CUDA-capable device is detected" : "an error";
}

API cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned int flags)
{
    if (flags != cudaStreamNonBlocking)
        fail("a stream that synchronizes with the default stream");
    *s = calloc(1, sizeof **s);
    (*s)->next = streams;
    streams = *s;
    return cudaSuccess;
}

API cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    struct CUstream_st **link = &streams;

    need_idle(s, "destroy");
    while (*link != s)
        link = &(*link)->next;
    *link = s->next;
    free(s);
    return cudaSuccess;
}

API cudaError_t cudaStreamQuery(cudaStream_t s)
{
    for (struct CUstream_st *i = streams; i; i = i->next)
        progress_stream(i);
    if (s->first && s->first->comm->is_in_progress)
        fail("a stream is queried while a call on its communicator is in progress");
    return s->first ? cudaErrorNotReady : cudaSuccess;
}

API cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    need_idle(s, "synchronize");
    return cudaSuccess;
}

API cudaError_t cudaMallocAsync(void **p, size_t n, cudaStream_t s)
{
    struct memory *m = malloc(sizeof *m);

    need_idle(s, "malloc");
    m->p = malloc(n);
    m->n = n;
    m->next = memory;
    memory = m;
    *p = memset(m->p, 0xa5, n);
    return cudaSuccess;
}

API cudaError_t cudaFreeAsync(void *p, cudaStream_t s)
{
    struct memory **link = &memory, *m;

    need_idle(s, "free");
    while (*link && (*link)->p != p)
        link = &(*link)->next;
    if (!(m = *link))
        fail("free of memory that is not device memory");
    *link = m->next;
    free(m->p);
    free(m);
    return cudaSuccess;
}

API cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, enum cudaMemcpyKind kind, cudaStream_t s)
{
    need_idle(s, "copy");
    if (is_device(to, n) != (kind == cudaMemcpyHostToDevice) || is_device(from, n) != (kind == cudaMemcpyDeviceToHost))
        fail("a copy of %zu bytes does not match cudaMemcpyKind %d", n, (int)kind);
    memcpy(to, from, n);
    return cudaSuccess;
}

/* ---- communicators ------------------------------------------------------------------------------ */

static struct sockaddr_un address_of(const struct ncclComm *c, int rank)
{
    struct sockaddr_un a = { .sun_family = AF_UNIX };

    snprintf(a.sun_path, sizeof a.sun_path, "%s.%d", c->name, rank);
    return a;
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
    snprintf(id->internal, 80, "%s/meg-double.%d.%d", tmp ? tmp : "/tmp", (int)getpid(), made++);
    return ncclSuccess;
}

API ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int size, ncclUniqueId id, int rank, ncclConfig_t *config)
{
    struct ncclComm *c = calloc(1, sizeof *c);
    struct sockaddr_un a;

    if (config->magic != 0xcafebeef || config->blocking != 0 || size < 2 || rank < 0 || rank >= size || !*id.internal)
        fail("a communicator of rank %d of %d with blocking = %d", rank, size, config->blocking);
    memcpy(c->name, id.internal, sizeof c->name - 1);
    c->rank = rank;
    c->size = size;
    c->fd = malloc((size_t)size * sizeof *c->fd);
    for (int r = 0; r < size; r++)
        c->fd[r] = -1;
    a = address_of(c, rank);
    c->listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (bind(c->listen_fd, (struct sockaddr *)&a, sizeof a) < 0 || listen(c->listen_fd, size) < 0)
        fail("%s: %s", a.sun_path, strerror(errno));
    comms++;
    *comm = c;
    return ncclInProgress;
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

/* The last call is reported as in progress once, so that callers that do not poll are detected. */
API ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t *now)
{
    const bool was_in_progress = c->is_in_progress;

    if (!c->is_joined)
        connect_peers(c);
    c->is_in_progress = false;
    *now = c->error ? c->error : was_in_progress || !c->is_joined ? ncclInProgress : ncclSuccess;
    return ncclSuccess;
}

API ncclResult_t ncclCommFinalize(ncclComm_t c)
{
    c->is_finalized = c->is_in_progress = true;
    return ncclInProgress;
}

API ncclResult_t ncclCommDestroy(ncclComm_t c)
{
    if (!c->is_finalized || c->is_in_progress)
        fail("a communicator is destroyed before it is finalized");
    for (int r = 0; r < c->size; r++)
        if (c->fd[r] >= 0)
            close(c->fd[r]);
    free(c->fd);
    free(c);
    comms--;
    return ncclSuccess;
}

/* ---- kernels ------------------------------------------------------------------------------------ */

API ncclResult_t ncclGroupStart(void)
{
    if (depth++)
        fail("nested groups");
    return ncclSuccess;
}

API ncclResult_t ncclGroupEnd(void)
{
    struct launch **link;

    if (--depth || !pending)
        fail("the end of a group that is not open, or empty");
    for (link = &pending_stream->first; *link; link = &(*link)->next)
        ;
    *link = pending;
    pending->comm->is_in_progress = true;
    pending = NULL;
    return ncclInProgress;
}

static ncclResult_t add(bool is_send, void *p, size_t count, ncclDataType_t type, int peer, ncclComm_t c,
                        cudaStream_t s)
{
    static const size_t size[ncclNumTypes] = { 1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1 };
    struct op *o;

    if (depth != 1)
        fail("send or receive outside of a group");
    if (!c->is_joined || c->is_in_progress || c->is_finalized)
        fail("a communicator is used while a call is in progress, or after ncclCommFinalize");
    if (peer < 0 || peer >= c->size || peer == c->rank || (pending && (pending->comm != c || pending_stream != s)))
        fail("a message of rank %d to rank %d of %d", c->rank, peer, c->size);
    if (!is_device(p, count * size[type]))
        fail("%s of memory that is not device memory", is_send ? "send" : "receive");
    if (!pending) {
        pending = calloc(1, sizeof *pending);
        pending->comm = c;
        pending->op = calloc(2 * (size_t)c->size, sizeof *o);
        pending_stream = s;
    }
    for (int i = 0; i < pending->n; i++)
        if (pending->op[i].peer == peer && pending->op[i].is_send == is_send)
            fail("two messages to one rank in a group");
    o = &pending->op[pending->n++];
    *o = (struct op){ .is_send = is_send, .p = p, .nbytes = count * size[type], .peer = peer };
    o->header = (struct header){ .type = (uint32_t)type, .magic = 0x6d6567, .count = count };
    return ncclSuccess;
}

API ncclResult_t ncclSend(const void *p, size_t count, ncclDataType_t type, int peer, ncclComm_t c, cudaStream_t s)
{
    return add(true, (void *)p, count, type, peer, c, s);
}

API ncclResult_t ncclRecv(void *p, size_t count, ncclDataType_t type, int peer, ncclComm_t c, cudaStream_t s)
{
    return add(false, p, count, type, peer, c, s);
}

__attribute__((destructor)) static void check_released(void)
{
    if (memory || streams || comms || depth)
        fail("not released: %s%s%s", memory ? "device memory " : "", streams ? "streams " : "",
             comms ? "communicators" : "");
}
