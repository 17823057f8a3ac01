/* The transport of a group: NCCL's sends and receives, in channels. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/hash.h"
#include "base/mem.h"
#include "watchdog/watchdog.h"
#include "comm/collectives.h"
#include "comm/internal.h"
#include "comm/nccl_queue.h"
#include "file/temporary.h"

struct nccl_group {
    struct meg_comm_group g;
    uint64_t name; /* the same on all its ranks, and of no other group that shares a rank */
    int64_t splits;
    int local_rank;
    int32_t *here;                   /* [size]: what barriers send */
    struct meg_nccl_queue **channel; /* all of them: one of all ranks, and those of messages */
    struct meg_nccl_queue *all;
    struct meg_nccl_queue **to, **from; /* [size], NULL until they are used */
};

struct nccl_work {
    struct meg_work w;
    struct meg_nccl_transfer *transfer; /* NULL: nothing had to move */
};

static struct nccl_group *nccl_group_of(struct meg_comm_group *g)
{
    return (struct nccl_group *)g;
}

/* ---- moving ------------------------------------------------------------------------------ */

/* Part r at first of buf, n elements, is what goes to or comes from rank r. */
static void set_part(struct meg_nccl_part *p, const struct meg_work *w, const void *buf, int64_t first, int64_t n)
{
    p->host = meg_element(buf, first, w->t);
    p->nbytes = (size_t)n * meg_dtype_size(w->t);
}

/* Start what w moves in its group; what stays on this rank is copied. */
static void start(struct meg_work *w, struct meg_nccl_transfer *t)
{
    struct nccl_group *g = nccl_group_of(w->g);
    struct meg_nccl_part *out = &t->out[w->g->c.rank], *in = &t->in[w->g->c.rank];
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
    meg_nccl_queue_submit(g->all, t);
}

static struct meg_nccl_transfer *transfer_new(const struct meg_work *w)
{
    return meg_nccl_transfer_new(nccl_group_of(w->g)->all);
}

static void alltoallv(struct meg_work *w, const void *from, void *to)
{
    struct meg_nccl_transfer *t = transfer_new(w);
    const int64_t mine = w->g->count[w->g->c.rank];

    for (int r = 0; r < w->g->c.size; r++) {
        set_part(&t->out[r], w, from, w->g->first[r], w->g->count[r]);
        set_part(&t->in[r], w, to, r * mine, mine);
    }
    start(w, t);
}

static void allgatherv(struct meg_work *w, void *buf)
{
    struct meg_nccl_transfer *t = transfer_new(w);
    const int me = w->g->c.rank;

    for (int r = 0; r < w->g->c.size; r++) {
        set_part(&t->out[r], w, buf, w->g->first[me], w->g->count[me]);
        set_part(&t->in[r], w, buf, w->g->first[r], w->g->count[r]);
    }
    start(w, t);
}

static void all_gather(struct meg_work *w, void *out, const void *in, int64_t n)
{
    struct meg_nccl_transfer *t = transfer_new(w);

    for (int r = 0; r < w->g->c.size; r++) {
        set_part(&t->out[r], w, in, 0, n);
        set_part(&t->in[r], w, out, r * n, n);
    }
    start(w, t);
}

static void all_to_all(struct meg_work *w, void *out, const void *in, int64_t n)
{
    struct meg_nccl_transfer *t = transfer_new(w);

    for (int r = 0; r < w->g->c.size; r++) {
        set_part(&t->out[r], w, in, r * n, n);
        set_part(&t->in[r], w, out, r * n, n);
    }
    start(w, t);
}

static void broadcast(struct meg_work *w, void *buf, int64_t n, int root)
{
    struct meg_nccl_transfer *t = transfer_new(w);

    for (int r = 0; r < w->g->c.size; r++)
        if (w->g->c.rank == root)
            set_part(&t->out[r], w, buf, 0, r == root ? 0 : n);
    if (w->g->c.rank != root)
        set_part(&t->in[root], w, buf, 0, n);
    start(w, t);
}

static void barrier(struct meg_work *w)
{
    const struct nccl_group *g = nccl_group_of(w->g);

    all_gather(w, g->here, g->here + w->g->c.rank, 1);
}

/* ---- messages ---------------------------------------------------------------------------- */

static struct meg_nccl_queue *queue_new(const struct nccl_group *g, int from, int to, int rank, int size)
{
    struct meg_nccl_queue *c = meg_new(sizeof *c);

    *c = (struct meg_nccl_queue){ .group = g->name,
                                  .from = from,
                                  .to = to,
                                  .rank = rank,
                                  .size = size,
                                  .local_rank = g->local_rank,
                                  .what = g->g.c.group };
    meg_nccl_queue_add(c);
    return c;
}

/* Of the two ranks of a message's channel the sender is rank 0. */
static void message(struct meg_work *w, struct meg_nccl_queue **c, int from, int to, const void *buf, int64_t n)
{
    const bool is_in = to == w->g->c.rank;
    struct meg_nccl_transfer *t;

    if (n == 0)
        return;
    if (!*c)
        *c = queue_new(nccl_group_of(w->g), from, to, is_in, 2);
    t = meg_nccl_transfer_new(*c);
    set_part(is_in ? &t->in[0] : &t->out[1], w, buf, 0, n);
    ((struct nccl_work *)w)->transfer = t;
    meg_nccl_queue_submit(*c, t);
}

static void send(struct meg_work *w, const void *buf, int64_t n, int to)
{
    message(w, &nccl_group_of(w->g)->to[to], w->g->c.rank, to, buf, n);
}

static void recv(struct meg_work *w, void *buf, int64_t n, int from)
{
    message(w, &nccl_group_of(w->g)->from[from], from, w->g->c.rank, buf, n);
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

/* All begin to close before any is waited for: ranks have opened theirs in orders of their own. */
static void close_queues(struct nccl_group *g)
{
    const double start_s = meg_now_s();
    const int n = 2 * g->g.c.size + 1;

    for (int i = 0; i < n; i++)
        if (g->channel[i])
            meg_nccl_queue_finalize(g->channel[i]);
    for (int i = 0; i < n; i++) {
        while (g->channel[i] && !meg_nccl_queue_close(g->channel[i])) {
            if (meg_now_s() - start_s > g->g.deadline_s)
                meg_die(MEG_EPEER, "rank %d of group %s waited %.1f s for others to close it", g->g.c.rank,
                        g->g.c.group, g->g.deadline_s);
            usleep(100);
        }
        free(g->channel[i]);
    }
}

static void close_group(struct meg_comm_group *group)
{
    struct nccl_group *g = nccl_group_of(group);

    close_queues(g);
    if (g->name == 0)
        meg_on_die(NULL);
    free(g->channel);
    free(g->here);
    free(g);
}

static const struct meg_transport move = {
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

static struct nccl_group *group_new(uint64_t id, const char *name, int rank, int size, int local_rank,
                                    double deadline_s)
{
    struct nccl_group *g = meg_new(sizeof *g);

    g->g.c.rank = rank;
    g->g.c.size = size;
    g->name = id;
    g->local_rank = local_rank;
    g->here = meg_new((size_t)size * sizeof *g->here);
    g->channel = meg_new((2 * (size_t)size + 1) * sizeof *g->channel);
    g->to = g->channel + 1;
    g->from = g->to + size;
    meg_comm_group_init(&g->g, &move, name, deadline_s);
    g->all = g->channel[0] = queue_new(g, -1, -1, rank, size);
    return g;
}

/* A group's name is made of its parent's, of how many were cut out of that before, and of its color. */
static struct meg_comm *split(struct meg_comm_group *world, int color, const char *name)
{
    struct nccl_group *w = nccl_group_of(world);
    const int64_t made_of[3] = { (int64_t)w->name, ++w->splits, color };
    const double sent = world->c.sent;
    int32_t *colors = meg_new((size_t)world->c.size * sizeof *colors), mine = color;
    int rank = 0, size = 0;

    meg_comm_wait(&world->c, world->c.op->all_gather(&world->c, colors, &mine, 1, MEG_DTYPE_I32));
    world->c.sent = sent; /* as over MPI, where nobody counts it */
    for (int r = 0; r < world->c.size; r++) {
        rank += r < world->c.rank && colors[r] == color;
        size += colors[r] == color;
    }
    free(colors);
    return &group_new(meg_xxh3_64(made_of, sizeof made_of), name, rank, size, w->local_rank, world->deadline_s)->g.c;
}

/* At once: exit() could wait for a kernel that waits for a lost peer. */
static void end_now(int status, const char *why)
{
    meg_watchdog_broadcast_exit(status, why);
    fflush(stdout);
    meg_temporary_exit(status);
}

struct meg_comm *meg_comm_open_nccl(const struct meg_torchrun *t)
{
    meg_on_die(end_now);
    return &group_new(0, "world", t->rank, t->size, t->local_rank, 600)->g.c;
}
