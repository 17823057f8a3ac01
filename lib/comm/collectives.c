/*
 * The collectives of a group of several ranks, over whatever transport it has.
 *
 * A reduction sends part i of the buffer to rank i, which adds the parts up in rank order, and gathers
 * the sums again: what an all-reduce of the library below moves, but with a result that does not depend on
 * the algorithm it picks, and with one code for every type and transport.  Large buffers go in pieces, so
 * that the memory for what arrives is bounded.
 *
 * Waits test instead of blocking, so that a deadline can be kept; the transport makes progress meanwhile.
 */
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/mem.h"
#include "watchdog/watchdog.h"
#include "comm/collectives.h"
#include "comm/internal.h"

static double nbytes_of(int64_t n, enum meg_dtype t)
{
    return (double)n * (double)meg_dtype_size(t);
}

static struct meg_work *work_new(struct meg_comm *c, const char *what, enum meg_dtype t)
{
    struct meg_comm_group *g = meg_comm_group_of(c);
    struct meg_work *w = meg_new(g->move->work_nbytes);

    w->g = g;
    w->what = what;
    w->number = ++g->started;
    w->t = t;
    return w;
}

/* The board, which asks the others, speaks first; what is said here is all that can be known without it. */
static void give_up(const struct meg_work *w) MEG_NORETURN;
static void give_up(const struct meg_work *w)
{
    const struct meg_comm_group *g = w->g;
    char host[256] = "?";

    meg_watchdog_await_report();
    gethostname(host, sizeof host - 1);
    meg_die(MEG_EPEER,
            "rank %d of %d on %s waited %.1f s in %s of group %s; a peer is gone or stuck, see what the others say "
            "(--distributed-timeout-minutes sets how long)",
            g->c.rank, g->c.size, host, g->deadline_s, w->what, g->c.group);
}

/* Test until done; now and then look at the clock, and let others run.  Time in which we were stopped is not waited. */
static void wait_transfer(struct meg_work *w)
{
    const double start = meg_now_s();
    double before = 0, waited = 0;

    for (int tries = 0;; tries++) {
        double now;

        if (w->g->move->is_done(w))
            break;
        if (tries % 64 != 63)
            continue;
        sched_yield();
        now = meg_now_s();
        if (before == 0)
            meg_watchdog_wait_begin(w->what, w->g->c.group, w->number);
        else if (now - before < 1)
            waited += now - before;
        before = now;
        if (waited > w->g->deadline_s && !meg_watchdog_extends_timeout(waited))
            give_up(w);
    }
    if (before != 0)
        meg_watchdog_wait_end();
    meg_comm_add_wait(meg_now_s() - start);
}

static void wait_work(struct meg_work *w)
{
    do
        wait_transfer(w);
    while (w->then && w->then(w));
    free(w);
}

static bool test_work(struct meg_work *w)
{
    if (!w->g->move->is_done(w) || (w->then && w->then(w)))
        return false;
    free(w);
    return true;
}

/* ---- reductions -------------------------------------------------------------------------- */

/* Room for nbytes of arriving parts. */
static void *room(struct meg_comm_group *g, size_t nbytes)
{
    if (g->cap < nbytes) {
        free(g->arrived);
        g->arrived = meg_new(nbytes);
        g->cap = nbytes;
    }
    return g->arrived;
}

/* Cut the piece of an all-reduce from w->at on into a part for each rank. */
static void split_chunk(struct meg_work *w)
{
    struct meg_comm_group *g = w->g;
    const int64_t most = meg_all_reduce_chunk(g->c.size), n = w->n - w->at < most ? w->n - w->at : most;

    for (int r = 0; r < g->c.size; r++) {
        g->first[r] = (int)(n * r / g->c.size);
        g->count[r] = (int)(n * (r + 1) / g->c.size) - g->first[r];
    }
}

static bool send_parts(struct meg_work *w);

static bool next_chunk(struct meg_work *w)
{
    w->at += w->g->first[w->g->c.size - 1] + w->g->count[w->g->c.size - 1];
    return w->at < w->n && send_parts(w);
}

static bool gather_reduced(struct meg_work *w)
{
    struct meg_comm_group *g = w->g;
    const int64_t mine = g->count[g->c.rank];

    meg_reduce_local(meg_element(w->buf, w->at + g->first[g->c.rank], w->t), g->arrived, mine, g->c.size, w->t, w->how);
    w->then = next_chunk;
    g->move->allgatherv(w, meg_element(w->buf, w->at, w->t));
    return true;
}

static bool send_parts(struct meg_work *w)
{
    struct meg_comm_group *g = w->g;

    split_chunk(w);
    room(g, (size_t)g->count[g->c.rank] * (size_t)g->c.size * meg_dtype_size(w->t));
    w->then = gather_reduced;
    g->move->alltoallv(w, meg_element(w->buf, w->at, w->t), g->arrived);
    return true;
}

static struct meg_work *all_reduce(struct meg_comm *c, void *buf, int64_t n, enum meg_dtype t, enum meg_reduce_op how)
{
    struct meg_work *w = work_new(c, "all-reduce", t);

    c->sent += meg_comm_volume_all_reduce(c->size, nbytes_of(n, t));
    w->buf = buf;
    w->n = n;
    w->how = how;
    send_parts(w);
    return w;
}

static bool reduce_received(struct meg_work *w)
{
    meg_reduce_local(w->buf, w->g->arrived, w->n, w->g->c.size, w->t, w->how);
    return false;
}

static struct meg_work *reduce_scatter(struct meg_comm *c, void *out, const void *in, int64_t n, enum meg_dtype t,
                                       enum meg_reduce_op how)
{
    struct meg_work *w = work_new(c, "reduce-scatter", t);

    c->sent += meg_comm_volume_sharded(c->size, nbytes_of(n, t));
    MEG_ASSERT_LE(n, INT32_MAX);
    w->buf = out;
    w->n = n;
    w->how = how;
    w->then = reduce_received;
    w->g->move->all_to_all(w, room(w->g, (size_t)(n * c->size) * meg_dtype_size(t)), in, n);
    return w;
}

/* ---- moving ------------------------------------------------------------------------------ */

static struct meg_work *all_gather(struct meg_comm *c, void *out, const void *in, int64_t n, enum meg_dtype t)
{
    struct meg_work *w = work_new(c, "all-gather", t);

    c->sent += meg_comm_volume_sharded(c->size, nbytes_of(n, t));
    MEG_ASSERT_LE(n, INT32_MAX);
    w->g->move->all_gather(w, out, in, n);
    return w;
}

static struct meg_work *all_to_all(struct meg_comm *c, void *out, const void *in, int64_t n, enum meg_dtype t)
{
    struct meg_work *w = work_new(c, "all-to-all", t);

    c->sent += meg_comm_volume_sharded(c->size, nbytes_of(n, t));
    MEG_ASSERT_LE(n, INT32_MAX);
    w->g->move->all_to_all(w, out, in, n);
    return w;
}

static struct meg_work *broadcast(struct meg_comm *c, void *buf, int64_t n, enum meg_dtype t, int root)
{
    struct meg_work *w = work_new(c, "broadcast", t);

    c->sent += nbytes_of(n, t);
    MEG_ASSERT_LE(n, INT32_MAX);
    w->g->move->broadcast(w, buf, n, root);
    return w;
}

static struct meg_work *send(struct meg_comm *c, const void *buf, int64_t n, enum meg_dtype t, int to)
{
    struct meg_work *w = work_new(c, "send", t);

    c->sent += nbytes_of(n, t);
    MEG_ASSERT_LE(n, INT32_MAX);
    w->g->move->send(w, buf, n, to);
    return w;
}

static struct meg_work *recv(struct meg_comm *c, void *buf, int64_t n, enum meg_dtype t, int from)
{
    struct meg_work *w = work_new(c, "receive", t);

    MEG_ASSERT_LE(n, INT32_MAX);
    w->g->move->recv(w, buf, n, from);
    return w;
}

static struct meg_work *barrier(struct meg_comm *c)
{
    struct meg_work *w = work_new(c, "barrier", MEG_DTYPE_I32);

    w->g->move->barrier(w);
    return w;
}

/* ---- groups ------------------------------------------------------------------------------ */

static void set_deadline(struct meg_comm *c, double seconds)
{
    meg_comm_group_of(c)->deadline_s = seconds;
}

static struct meg_comm *split(struct meg_comm *world, int color, const char *name)
{
    struct meg_comm_group *g = meg_comm_group_of(world);

    return g->move->split(g, color, name);
}

static void close_group(struct meg_comm *c)
{
    struct meg_comm_group *g = meg_comm_group_of(c);

    free(g->arrived);
    free(g->count);
    free(g->first);
    g->move->close(g);
}

static const struct meg_comm_ops ops = {
    .all_reduce = all_reduce,
    .reduce_scatter = reduce_scatter,
    .all_gather = all_gather,
    .all_to_all = all_to_all,
    .broadcast = broadcast,
    .send = send,
    .recv = recv,
    .barrier = barrier,
    .wait = wait_work,
    .test = test_work,
    .split = split,
    .set_deadline = set_deadline,
    .close = close_group,
};

void meg_comm_group_init(struct meg_comm_group *g, const struct meg_transport *move, const char *name,
                         double deadline_s)
{
    g->c.op = &ops;
    g->c.group = name;
    g->move = move;
    g->deadline_s = deadline_s;
    g->count = meg_new((size_t)g->c.size * sizeof *g->count);
    g->first = meg_new((size_t)g->c.size * sizeof *g->first);
}
