/* The NCCL transport: ncclSend and ncclRecv, in the queues of nccl_queue.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/hash.h"
#include "base/mem.h"
#include "comm/collectives.h"
#include "comm/internal.h"
#include "comm/nccl_queue.h"
#include "file/temporary.h"
#include "watchdog/watchdog.h"

struct nccl_group {
    struct meg_comm_group g;
    uint64_t id; /* id that is equal on all ranks of the group, and unique among the groups of each rank */
    int64_t nsplits;
    int local_rank;
    int32_t *barrier_buf;          /* [size] */
    struct meg_nccl_queue **queue; /* [2 size + 1] the collective queue, then send_queue and recv_queue */
    struct meg_nccl_queue *collective_queue;
    struct meg_nccl_queue **send_queue, **recv_queue; /* [size] parts of `queue`; elements are NULL until first use */
};

struct nccl_work {
    struct meg_work w;
    struct meg_nccl_transfer *transfer; /* NULL if there are no bytes to transfer, and after completion */
};

static struct nccl_group *nccl_group_of(struct meg_comm_group *g)
{
    return (struct nccl_group *)g;
}

/* ---- collectives ------------------------------------------------------------------------------ */

/* Set *b to elements [first, first + n) of buf. */
static void set_buffer(struct meg_nccl_buffer *b, const struct meg_work *w, const void *buf, int64_t first, int64_t n)
{
    b->host = meg_element(buf, first, w->dtype);
    b->nbytes = (size_t)n * meg_dtype_size(w->dtype);
}

/* Submit the transfer of a collective; copy the part that this rank sends to itself. */
static void start(struct meg_work *w, struct meg_nccl_transfer *t)
{
    struct nccl_group *g = nccl_group_of(w->g);
    struct meg_nccl_buffer *out = &t->out[w->g->c.rank], *in = &t->in[w->g->c.rank];
    size_t nbytes = 0;

    if (in->host != out->host && in->nbytes)
        memmove(in->host, out->host, in->nbytes);
    in->nbytes = out->nbytes = 0;
    for (int r = 0; r < 2 * w->g->c.size; r++)
        nbytes += t->out[r].nbytes;
    if (!nbytes) {
        free(t);
        return;
    }
    ((struct nccl_work *)w)->transfer = t;
    meg_nccl_queue_submit(g->collective_queue, t);
}

static struct meg_nccl_transfer *transfer_new(const struct meg_work *w)
{
    return meg_nccl_transfer_new(nccl_group_of(w->g)->collective_queue);
}

static void alltoallv(struct meg_work *w, const void *from, void *to)
{
    struct meg_nccl_transfer *t = transfer_new(w);
    const int64_t mine = w->g->counts[w->g->c.rank];

    for (int r = 0; r < w->g->c.size; r++) {
        set_buffer(&t->out[r], w, from, w->g->displs[r], w->g->counts[r]);
        set_buffer(&t->in[r], w, to, r * mine, mine);
    }
    start(w, t);
}

static void allgatherv(struct meg_work *w, void *buf)
{
    struct meg_nccl_transfer *t = transfer_new(w);
    const int me = w->g->c.rank;

    for (int r = 0; r < w->g->c.size; r++) {
        set_buffer(&t->out[r], w, buf, w->g->displs[me], w->g->counts[me]);
        set_buffer(&t->in[r], w, buf, w->g->displs[r], w->g->counts[r]);
    }
    start(w, t);
}

static void all_gather(struct meg_work *w, void *out, const void *in, int64_t n)
{
    struct meg_nccl_transfer *t = transfer_new(w);

    for (int r = 0; r < w->g->c.size; r++) {
        set_buffer(&t->out[r], w, in, 0, n);
        set_buffer(&t->in[r], w, out, r * n, n);
    }
    start(w, t);
}

static void all_to_all(struct meg_work *w, void *out, const void *in, int64_t n)
{
    struct meg_nccl_transfer *t = transfer_new(w);

    for (int r = 0; r < w->g->c.size; r++) {
        set_buffer(&t->out[r], w, in, r * n, n);
        set_buffer(&t->in[r], w, out, r * n, n);
    }
    start(w, t);
}

static void broadcast(struct meg_work *w, void *buf, int64_t n, int root)
{
    struct meg_nccl_transfer *t = transfer_new(w);

    for (int r = 0; r < w->g->c.size; r++)
        if (w->g->c.rank == root)
            set_buffer(&t->out[r], w, buf, 0, r == root ? 0 : n);
    if (w->g->c.rank != root)
        set_buffer(&t->in[root], w, buf, 0, n);
    start(w, t);
}

static void barrier(struct meg_work *w)
{
    const struct nccl_group *g = nccl_group_of(w->g);

    all_gather(w, g->barrier_buf, g->barrier_buf + w->g->c.rank, 1);
}

/* ---- messages ---------------------------------------------------------------------------- */

static struct meg_nccl_queue *queue_new(const struct nccl_group *g, int from, int to, int rank, int size)
{
    struct meg_nccl_queue *q = meg_new(sizeof *q);

    *q = (struct meg_nccl_queue){ .group_id = g->id,
                                  .from = from,
                                  .to = to,
                                  .rank = rank,
                                  .size = size,
                                  .local_rank = g->local_rank,
                                  .group = &g->g };
    meg_nccl_queue_add(q);
    return q;
}

/* Submit a message to *q, which is created at first use.  In the queue, the sender is rank 0, the receiver rank 1. */
static void send_recv(struct meg_work *w, struct meg_nccl_queue **q, int from, int to, const void *buf, int64_t n)
{
    const bool is_in = to == w->g->c.rank;
    struct meg_nccl_transfer *t;

    if (n == 0)
        return;
    if (!*q)
        *q = queue_new(nccl_group_of(w->g), from, to, is_in, 2);
    t = meg_nccl_transfer_new(*q);
    set_buffer(is_in ? &t->in[0] : &t->out[1], w, buf, 0, n);
    ((struct nccl_work *)w)->transfer = t;
    meg_nccl_queue_submit(*q, t);
}

static void send(struct meg_work *w, const void *buf, int64_t n, int to)
{
    send_recv(w, &nccl_group_of(w->g)->send_queue[to], w->g->c.rank, to, buf, n);
}

static void recv(struct meg_work *w, void *buf, int64_t n, int from)
{
    send_recv(w, &nccl_group_of(w->g)->recv_queue[from], from, w->g->c.rank, buf, n);
}

static bool is_done(struct meg_work *w)
{
    struct nccl_work *n = (struct nccl_work *)w;

    if (!n->transfer)
        return true;
    meg_nccl_progress();
    if (!n->transfer->is_done)
        return false;
    free(n->transfer);
    n->transfer = NULL;
    return true;
}

/* ---- groups ------------------------------------------------------------------------------ */

static struct meg_comm *split(struct meg_comm_group *world, int color, const char *name);

/* Finalize all queues, and only then wait for each queue: ranks opened the queues in different orders. */
static void close_queues(struct nccl_group *g)
{
    const double start_s = meg_now_s();
    const int n = 2 * g->g.c.size + 1;

    for (int i = 0; i < n; i++)
        if (g->queue[i])
            meg_nccl_queue_finalize(g->queue[i]);
    for (int i = 0; i < n; i++) {
        while (g->queue[i] && !meg_nccl_queue_close(g->queue[i])) {
            if (meg_now_s() - start_s > g->g.timeout_s)
                meg_die(MEG_EPEER,
                        "rank %d of %d waited %.1f s for the other ranks to close their NCCL communicators of group "
                        "%s; a peer exited or is stuck; see the messages of the other ranks, or increase "
                        "--distributed-timeout-minutes",
                        g->g.c.rank, g->g.c.size, g->g.timeout_s, g->g.c.name);
            usleep(100);
        }
        free(g->queue[i]);
    }
}

static void close_group(struct meg_comm_group *group)
{
    struct nccl_group *g = nccl_group_of(group);

    close_queues(g);
    if (g->g.world == group)
        meg_on_die(NULL, NULL);
    free(g->queue);
    free(g->barrier_buf);
    free(g);
}

static const struct meg_transport nccl_transport = {
    .work_nbytes = sizeof(struct nccl_work),
    .alltoallv = alltoallv,
    .allgatherv = allgatherv,
    .all_gather = all_gather,
    .all_to_all = all_to_all,
    .broadcast = broadcast,
    .send = send,
    .recv = recv,
    .barrier = barrier,
    .is_done = is_done,
    .split = split,
    .close = close_group,
};

/* Create a group; world is NULL for the world communicator itself. */
static struct nccl_group *group_new(uint64_t id, struct meg_comm_group *world, const char *name, int rank, int size,
                                    int local_rank)
{
    struct nccl_group *g = meg_new(sizeof *g);

    g->g.c.rank = rank;
    g->g.c.size = size;
    g->id = id;
    g->local_rank = local_rank;
    g->barrier_buf = meg_new((size_t)size * sizeof *g->barrier_buf);
    g->queue = meg_new((2 * (size_t)size + 1) * sizeof *g->queue);
    g->send_queue = g->queue + 1;
    g->recv_queue = g->send_queue + size;
    meg_comm_group_init(&g->g, world, &nccl_transport, name);
    g->collective_queue = g->queue[0] = queue_new(g, -1, -1, rank, size);
    return g;
}

/* The id of the new group is a hash of the parent's id, the parent's number of splits, and the color. */
static struct meg_comm *split(struct meg_comm_group *world, int color, const char *name)
{
    struct nccl_group *w = nccl_group_of(world);
    const int64_t key[3] = { (int64_t)w->id, ++w->nsplits, color };
    const double nbytes_sent = world->c.nbytes_sent;
    int32_t *colors = meg_new((size_t)world->c.size * sizeof *colors), own = color;
    int rank = 0, size = 0;

    meg_host_all_gather(&world->c, colors, &own, 1, MEG_DTYPE_I32);
    world->c.nbytes_sent = nbytes_sent; /* bytes of a split are not counted, as over MPI */
    for (int r = 0; r < world->c.size; r++) {
        rank += r < world->c.rank && colors[r] == color;
        size += colors[r] == color;
    }
    free(colors);
    return &group_new(meg_xxh3_64(key, sizeof key), world, name, rank, size, w->local_rank)->g.c;
}

/* Exit at once.  meg_die calls this hook, because exit() could wait for a kernel that waits for a lost peer. */
static void exit_now(int status, const char *why, void *world)
{
    meg_watchdog_broadcast_exit(((struct meg_comm *)world)->watchdog, status, why);
    fflush(stdout);
    meg_temporary_exit(status);
}

struct meg_comm *meg_comm_open_nccl(const struct meg_torchrun *t)
{
    struct meg_comm *world = &group_new(0, NULL, "world", t->rank, t->size, t->local_rank)->g.c;

    meg_on_die(exit_now, world);
    return world;
}
