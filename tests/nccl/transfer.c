/*
 * transfer.c - transfers between ranks over sockets, and the sums of reductions.  The caller holds the lock.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include "double.h"
#include "tensor/half.h"

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
            fail("rank %d calls operation %u on %" PRIu64
                 " elements of type %u (op %u, root %d, registered memory %" PRId64
                 "), rank %d operation %u on %" PRIu64 " of type %u (op %u, root %d, registered memory %" PRId64 ")",
                 c->rank, want.call, want.count, want.type, want.op, want.root, want.registered_at, t->peer, got.call,
                 got.count, got.type, got.op, got.root, got.registered_at);
        if (t->header_moved && t->header_moved < sizeof got)
            fail("a header was transferred in parts");
    }
    if (is_alive && t->header_moved == sizeof got)
        is_alive = move_bytes(c->fd[t->peer], t->is_send, t->p, t->nbytes, &t->moved);
    if (!is_alive)
        c->error = ncclRemoteError;
}

size_t size_of(uint32_t type)
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

bool progress_launch(struct launch *l)
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
