/*
 * nccl.c - the functions of NCCL: communicators, collectives and messages.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include "double.h"

static int ncomms, depth;
static struct launch *group; /* the calls of the open group, or NULL */

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
    begin_task(l->stream);
    for (int i = 0; i < l->n; i++)
        if (!l->parts || l->transfer[i].is_send)
            check_access(l->stream, l->transfer[i].p, l->transfer[i].nbytes, l->transfer[i].is_send ? READ : WRITE,
                         true, "a collective");
    if (l->out && l->header.count)
        check_access(l->stream, l->out,
                     (l->header.call == ALL_GATHER ? (size_t)c->size : 1) * l->header.count * size_of(l->header.type),
                     WRITE, true, "a collective");
    push_task(l->stream, (struct task){ .type = LAUNCH, .launch = l });
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
    if (!c->is_finalized || c->is_in_progress || c->registrations)
        fail("a communicator is destroyed before it is finalized, or with registered memory");
    for (int r = 0; r < c->size; r++)
        if (c->fd[r] >= 0)
            close(c->fd[r]);
    free(c->fd);
    free(c);
    ncomms--;
    pthread_mutex_unlock(&lock);
    return ncclSuccess;
}

/* Append the number of this process and `what` to the file that an environment variable names, if it is set. */
static void log_call(const char *variable, const char *what)
{
    const char *path = getenv(variable);
    FILE *f = path ? fopen(path, "a") : NULL;

    if (f) {
        fprintf(f, "%d%s\n", (int)getpid(), what);
        fclose(f);
    }
}

API ncclResult_t ncclCommAbort(ncclComm_t c)
{
    log_call("MEG_DOUBLE_ABORTS", "");
    pthread_mutex_lock(&lock);
    c->is_aborted = true;
    ncomms--;
    pthread_mutex_unlock(&lock);
    return ncclSuccess;
}

/* ---- registered memory ---------------------------------------------------------------------------- */

struct registration {
    struct registration *next;
    const char *p;
    size_t n;
};

API ncclResult_t ncclCommRegister(ncclComm_t c, void *p, size_t n, void **handle)
{
    struct registration *r = malloc(sizeof *r);

    pthread_mutex_lock(&lock);
    check_call(c);
    add_registration(p, n, 1);
    *r = (struct registration){ c->registrations, p, n };
    *handle = c->registrations = r;
    pthread_mutex_unlock(&lock);
    return ncclSuccess;
}

API ncclResult_t ncclCommDeregister(ncclComm_t c, void *handle)
{
    struct registration **link = &c->registrations, *r;

    pthread_mutex_lock(&lock);
    check_call(c);
    if (c->nqueued)
        fail("memory is deregistered before the operations of the communicator are complete");
    while (*link && *link != handle)
        link = &(*link)->next;
    if (!(r = *link))
        fail("an invalid handle of registered memory");
    *link = r->next;
    add_registration(r->p, r->n, -1);
    free(r);
    pthread_mutex_unlock(&lock);
    return ncclSuccess;
}

/* Return the offset of p in the registered memory of c that contains n bytes at p, or -1. */
static int64_t registered_offset(const struct ncclComm *c, const void *p, size_t n)
{
    const char *at = p;

    for (const struct registration *r = c->registrations; r; r = r->next)
        if (at >= r->p && at + n <= r->p + r->n)
            return at - r->p;
    return -1;
}

/*
 * Return registered_offset of the larger operand of a collective, with nin bytes at `in` and nout bytes at `out`.
 * Check that both or no operands are registered.
 */
static int64_t registered_operands(const struct ncclComm *c, uint32_t call, const void *in, size_t nin, const void *out,
                                   size_t nout)
{
    static const char *const names[] = { [ALL_REDUCE] = " all-reduce",
                                         [REDUCE_SCATTER] = " reduce-scatter",
                                         [ALL_GATHER] = " all-gather",
                                         [BROADCAST] = " broadcast" };
    const int64_t in_at = registered_offset(c, in, nin), out_at = registered_offset(c, out, nout);

    if ((in_at < 0) != (out_at < 0))
        fail("one operand of%s is registered, and the other is not", names[call]);
    if (in_at < 0 && c->registrations && (call == REDUCE_SCATTER || call == ALL_GATHER))
        fail("the operands of%s are not registered, but the communicator has registered memory", names[call]);
    if (in_at >= 0)
        log_call("MEG_DOUBLE_REGISTERED", names[call]);
    return nin > nout ? in_at : out_at;
}

/* ---- collectives ---------------------------------------------------------------------------------- */

API ncclResult_t ncclGroupStart(void)
{
    if (depth++)
        fail("nested groups");
    return ncclSuccess;
}

/* Begin a call, which is in progress until ncclCommGetAsyncError has reported that it is complete. */
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
 * Begin a collective.  This rank sends nsend bytes to each other rank: to rank r, those at in + r * distance.  In a
 * broadcast, it receives nroot bytes from the root, and otherwise h.count elements from each other rank.
 */
static ncclResult_t collective(struct ncclComm *c, cudaStream_t s, struct header h, const void *in, size_t distance,
                               size_t nsend, void *out, size_t nroot, bool is_reduction)
{
    const size_t nbytes = (size_t)h.count * size_of(h.type), all = nbytes * (size_t)c->size;
    struct launch *l;

    pthread_mutex_lock(&lock);
    if (depth)
        fail("a collective in a group of calls");
    h.registered_at = registered_operands(c, h.call, in, h.call == REDUCE_SCATTER ? all : nbytes, out,
                                          h.call == ALL_GATHER ? all : nbytes);
    l = launch_new(c, s, h);
    l->out = out;
    l->own = (const char *)in + distance * (size_t)c->rank;
    if (nbytes && !is_device(out, h.call == ALL_GATHER ? all : nbytes))
        fail("the output of a collective is not device memory");
    if (is_reduction)
        l->parts = malloc(all + 1);
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
