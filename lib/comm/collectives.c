/*
 * collectives.c - the collectives of a group of several ranks, implemented with the functions of a transport (struct
 * meg_transport).
 *
 * An all-reduce sends part i of the buffer to rank i (all-to-all), reduces the received parts locally in rank order,
 * and gathers the results.  This sends as many bytes as a ring all-reduce, and the result does not depend on an
 * algorithm that a library selects, unlike the order of an MPI or NCCL all-reduce.  A large buffer is processed in
 * chunks, which bounds the memory for received parts.  A small buffer is gathered from all ranks and reduced on each
 * rank: one collective instead of two.  The store transport has an all-reduce of its own.
 *
 * A wait polls instead of blocking, and can therefore time out.  Each poll progresses the transfer.
 */
#include "comm/collectives.h"
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "comm/internal.h"
#include "io/json.h"
#include "tensor/trace_ops.h"
#include "watchdog/watchdog.h"

#define DEFAULT_TIMEOUT_S 600.0

/* A wait of oversubscribed ranks polls for SPIN_S; after that, it sleeps for SLEEP_US before each poll. */
#define SPIN_S 0.00005
#define SLEEP_US 50

/* With MEG_TRACE=comm, print a JSON line on stderr when an operation starts. */
static void trace_start(const struct meg_work *w)
{
    struct meg_str s = { 0 };

    if (!meg_trace_is_enabled("comm"))
        return;
    meg_json_begin(&s, '{');
    meg_json_set_str(&s, "op", w->op_name);
    meg_json_set_i64(&s, "rank", meg_log_rank());
    meg_json_set_str(&s, "group", w->g->c.name);
    meg_json_set_i64(&s, "ranks", w->g->c.size);
    meg_json_set_str(&s, "dtype", meg_dtype_name(w->call.dtype));
    meg_json_set_i64(&s, "n", w->call.n);
    meg_json_end(&s, '}');
    meg_str_add(&s, "\n", 1);
    fwrite(s.s, 1, s.n, stderr);
    meg_str_free(&s);
}

/*
 * End the process.  First wait for the watchdog to report the missing rank and end the process.  If the watchdog does
 * not, print a local message.
 */
static MEG_NORETURN void die_on_timeout(const struct meg_work *w)
{
    const struct meg_comm_group *g = w->g;
    char host[256] = "?";

    meg_watchdog_await_report(meg_comm_group_watchdog(g));
    gethostname(host, sizeof host - 1);
    meg_die(MEG_EPEER,
            "rank %d of %d on %s waited %.1f s in %s of group %s; a peer exited or is stuck; see the messages of the "
            "other ranks, or increase --distributed-timeout-minutes",
            g->c.rank, g->c.size, host, g->timeout_s, w->op_name, g->c.name);
}

void meg_comm_poll(struct meg_comm_poll *p)
{
    const struct meg_work *w = p->w;
    struct meg_watchdog *watchdog = meg_comm_group_watchdog(w->g);
    double now;

    if (!p->sleeps && p->count++ % 64 != 63)
        return;
    now = meg_now_s();
    p->sleeps = w->g->world->is_oversubscribed && p->before_s != 0 && now - p->begin_s > SPIN_S;
    if (p->sleeps)
        usleep(SLEEP_US);
    else
        sched_yield();
    if (p->before_s == 0) {
        p->begin_s = now;
        meg_watchdog_wait_begin(watchdog, w->op_name, w->g->c.name, w->op_number);
    } else if (now - p->before_s < 1 && !meg_watchdog_task_is_running(watchdog))
        p->waited_s += now - p->before_s;
    p->before_s = now;
    if (p->waited_s > w->g->timeout_s && !meg_watchdog_extends_timeout(watchdog, p->waited_s))
        die_on_timeout(w);
}

void meg_comm_poll_end(struct meg_comm_poll *p)
{
    if (p->before_s != 0)
        meg_watchdog_wait_end(meg_comm_group_watchdog(p->w->g));
}

static void wait_transfer(struct meg_work *w)
{
    const double start = meg_now_s();
    struct meg_comm_poll poll = { .w = w };

    while (!w->g->transport->is_done(w))
        meg_comm_poll(&poll);
    meg_comm_poll_end(&poll);
    meg_comm_add_wait(meg_now_s() - start);
}

static void wait_work(struct meg_work *w, struct meg_stream *st)
{
    (void)st;
    do
        wait_transfer(w);
    while (w->next_stage && w->next_stage(w));
    free(w);
}

static bool test_work(struct meg_work *w)
{
    if (!w->g->transport->is_done(w) || (w->next_stage && w->next_stage(w)))
        return false;
    free(w);
    return true;
}

/* ---- reductions -------------------------------------------------------------------------- */

/* Return a buffer of at least nbytes for received parts; g owns the buffer. */
static void *recv_workspace(struct meg_comm_group *g, size_t nbytes)
{
    if (g->recv_cap < nbytes) {
        free(g->recv_buf);
        g->recv_buf = meg_new(nbytes);
        g->recv_cap = nbytes;
    }
    return g->recv_buf;
}

/* Partition the chunk of an all-reduce that starts at w->offset into one part per rank. */
static void split_chunk(struct meg_work *w)
{
    struct meg_comm_group *g = w->g;
    const int64_t chunk = meg_all_reduce_chunk(g->c.size), left = w->call.n - w->offset,
                  n = left < chunk ? left : chunk;

    for (int r = 0; r < g->c.size; r++) {
        g->displs[r] = (int)(n * r / g->c.size);
        g->counts[r] = (int)(n * (r + 1) / g->c.size) - g->displs[r];
    }
}

static bool send_parts(struct meg_work *w);

/* Run the third stage of an all-reduce: advance to the next chunk, if any. */
static bool next_chunk(struct meg_work *w)
{
    w->offset += w->g->displs[w->g->c.size - 1] + w->g->counts[w->g->c.size - 1];
    return w->offset < w->call.n && send_parts(w);
}

/* Run the second stage of an all-reduce: reduce the received parts, and gather the results of all ranks. */
static bool gather_reduced(struct meg_work *w)
{
    const struct meg_comm_call *x = &w->call;
    struct meg_comm_group *g = w->g;

    meg_reduce_local(meg_element(x->out, w->offset + g->displs[g->c.rank], x->dtype), g->recv_buf, g->counts[g->c.rank],
                     g->c.size, x->dtype, x->reduce);
    w->next_stage = next_chunk;
    g->transport->allgatherv(w, meg_element(x->out, w->offset, x->dtype));
    return true;
}

/* Run the first stage of an all-reduce: send each rank its part of the chunk. */
static bool send_parts(struct meg_work *w)
{
    struct meg_comm_group *g = w->g;

    split_chunk(w);
    recv_workspace(g, (size_t)g->counts[g->c.rank] * (size_t)g->c.size * meg_dtype_size(w->call.dtype));
    w->next_stage = gather_reduced;
    g->transport->alltoallv(w, meg_element(w->call.out, w->offset, w->call.dtype), g->recv_buf);
    return true;
}

static bool reduce_received(struct meg_work *w)
{
    const struct meg_comm_call *x = &w->call;

    meg_reduce_local(x->out, w->g->recv_buf, x->n, w->g->c.size, x->dtype, x->reduce);
    return false;
}

/* Start the first transfer of w: of the values of all ranks, if this rank reduces them, or the operation itself. */
static void start_transfer(struct meg_work *w)
{
    struct meg_comm_group *g = w->g;
    struct meg_comm_call x = w->call;
    const size_t nbytes = (size_t)x.n * meg_dtype_size(x.dtype);

    if (g->transport->alltoallv && x.op == MEG_ALL_REDUCE && nbytes > MEG_ALL_REDUCE_SMALL) {
        send_parts(w);
        return;
    }
    if (g->transport->alltoallv && (x.op == MEG_ALL_REDUCE || x.op == MEG_REDUCE_SCATTER)) {
        w->next_stage = reduce_received;
        x.in = x.op == MEG_ALL_REDUCE ? x.out : x.in;
        x.out = recv_workspace(g, nbytes * (size_t)g->c.size);
        x.op = x.op == MEG_ALL_REDUCE ? MEG_ALL_GATHER : MEG_ALL_TO_ALL;
    }
    g->transport->start(w, &x);
}

static struct meg_work *start(struct meg_comm *c, struct meg_stream *st, const struct meg_comm_call *x)
{
    struct meg_comm_group *g = meg_comm_group_of(c);
    struct meg_work *w = meg_new(g->transport->work_nbytes);

    (void)st;
    w->g = g;
    w->op_name = meg_comm_op_name(x->op);
    w->op_number = ++g->nops;
    w->call = *x;
    c->nbytes_sent += meg_comm_volume(x, c->size);
    trace_start(w);
    start_transfer(w);
    return w;
}

/* ---- groups ------------------------------------------------------------------------------ */

static void set_timeout(struct meg_comm *c, double seconds)
{
    meg_comm_group_of(c)->timeout_s = seconds;
}

static struct meg_comm *split(struct meg_comm *world, int color, const char *name)
{
    struct meg_comm_group *g = meg_comm_group_of(world);

    return g->transport->split(g, color, name);
}

static void close_group(struct meg_comm *c)
{
    struct meg_comm_group *g = meg_comm_group_of(c);

    free(g->recv_buf);
    free(g->counts);
    free(g->displs);
    g->transport->close(g);
}

static const struct meg_comm_ops ops = {
    .start = start,
    .wait = wait_work,
    .test = test_work,
    .split = split,
    .set_timeout = set_timeout,
    .close = close_group,
};

void meg_comm_group_init(struct meg_comm_group *g, struct meg_comm_group *world, const struct meg_transport *transport,
                         const char *name)
{
    g->c.op = g->c.host = &ops;
    g->c.has_host_tensors = transport->alltoallv;
    g->c.name = name;
    g->world = world ? world : g;
    g->transport = transport;
    g->timeout_s = world ? world->timeout_s : DEFAULT_TIMEOUT_S;
    g->counts = meg_new((size_t)g->c.size * sizeof *g->counts);
    g->displs = meg_new((size_t)g->c.size * sizeof *g->displs);
}
