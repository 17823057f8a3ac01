/*
 * monitor.c - the monitor thread receives frames, checks heartbeats and timeouts, and ends the process.
 *
 * All ranks run the same loop over their connections: rank 0 has a connection to each other rank, and each other rank
 * has one to rank 0.
 */
#include <sys/epoll.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/log.h"
#include "watchdog/internal.h"

#define JOIN_S 10.0 /* time after which an unauthenticated connection is closed */
#define TERM_S 0.3  /* delay from SIGTERM until this process exits, unless a rank is lost meanwhile */
/* For this time after a pause of this process that exceeded the timeout, a report of a lost rank mentions the pause. */
#define PAUSE_S 5.0
/* Rank 0 logs a task if tasks have run for TASK_LOG_S without interruption, and then every TASK_LOG_AGAIN_S. */
#define TASK_LOG_S 10.0
#define TASK_LOG_AGAIN_S 60.0

/* Handle the requests of the main thread and of the signal handler. */
static void handle_wakeup(struct meg_watchdog *w)
{
    char bytes[64];

    while (read(w->wake_pipe[0], bytes, sizeof bytes) > 0)
        ;
    if (w->was_terminated && w->cause == WATCHDOG_CAUSE_PEER_EXIT)
        watchdog_exit_now(w, w->peer_status);
    if (w->was_terminated && w->cause == WATCHDOG_CAUSE_NONE) {
        w->cause = WATCHDOG_CAUSE_SIGTERM;
        w->grace_s = TERM_S;
    }
    pthread_mutex_lock(&w->lock);
    if (w->is_exiting && !w->has_sent_exit) {
        watchdog_send_all(w, watchdog_is_server(w) ? WATCHDOG_EXIT_ALL : WATCHDOG_EXITING, &w->exit, sizeof w->exit);
        w->has_sent_exit = true;
        pthread_cond_broadcast(&w->exit_sent_cond);
    }
    if (w->is_closing && !w->has_sent_bye) {
        watchdog_send_all(w, WATCHDOG_BYE, NULL, 0);
        w->has_sent_bye = true;
    }
    pthread_mutex_unlock(&w->lock);
    watchdog_store_flush(w);
}

/*
 * Return whether this thread must end: it has broadcast the exit of this process, or WATCHDOG_BYE and all earlier
 * frames are sent.
 */
static bool is_over(const struct meg_watchdog *w)
{
    bool is_closed = w->has_sent_bye;

    for (int i = 0; i < w->nconns; i++)
        is_closed &= !watchdog_is_peer(&w->conn[i]) || !w->conn[i].nout;
    return is_closed || w->has_sent_exit;
}

static void check_heartbeats(struct meg_watchdog *w, double passed)
{
    for (int i = 0; i < w->nconns; i++) {
        struct watchdog_conn *c = &w->conn[i];

        if (c->fd >= 0)
            c->since_heard_s += passed;
        if (watchdog_is_peer(c) && c->since_heard_s > w->timeout_s)
            watchdog_on_timeout(w, false);
        else if (c->fd >= 0 && c->rank < 0 && c->since_heard_s > JOIN_S)
            watchdog_close_conn(c);
    }
}

/*
 * Return the lowest-ranked peer that runs a task, or NULL.  On ranks other than 0, the only peer is rank 0; its
 * heartbeats state whether any rank runs a task.
 */
static const struct watchdog_conn *peer_with_task(const struct meg_watchdog *w)
{
    const struct watchdog_conn *peer = NULL;

    for (int i = 0; i < w->nconns; i++) {
        const struct watchdog_conn *c = &w->conn[i];

        if (watchdog_is_peer(c) && (c->state.task[0] || (c->rank == 0 && c->state.run_has_task)) &&
            (!peer || c->rank < peer->rank))
            peer = c;
    }
    return peer;
}

/* Log the task of this rank or, if it has none, of the peer. */
static void log_task(const struct meg_watchdog *w, const struct watchdog_rank_state *own,
                     const struct watchdog_conn *peer)
{
    const struct watchdog_rank_state *state = own->task[0] ? own : &peer->state;

    meg_info("rank %d of %d on %s is %.*s, for %.0f s so far; other ranks wait for it without a timeout",
             own->task[0] ? w->rank : peer->rank, w->size, own->task[0] ? w->host : peer->host, (int)sizeof state->task,
             state->task, state->task_s);
}

/* Update the time of this rank's task and whether any rank runs a task.  On rank 0, log a task that takes long. */
static void check_tasks(struct meg_watchdog *w, double passed)
{
    const struct watchdog_conn *peer = peer_with_task(w);
    struct watchdog_rank_state own;

    pthread_mutex_lock(&w->lock);
    w->state.task_s += passed;
    w->state.run_has_task = w->state.task[0] || peer;
    own = w->state;
    pthread_mutex_unlock(&w->lock);
    w->until_task_log_s = own.run_has_task ? w->until_task_log_s - passed : TASK_LOG_S;
    if (w->until_task_log_s > 0)
        return;
    w->until_task_log_s = TASK_LOG_AGAIN_S;
    if (watchdog_is_server(w))
        log_task(w, &own, peer);
}

/* Accumulate the time of this process's current wait, without the time of tasks, and check its timeout. */
static void check_wait_timeout(struct meg_watchdog *w, double passed)
{
    double timeout_s;
    bool is_same, has_task;

    pthread_mutex_lock(&w->lock);
    timeout_s = watchdog_timeout_s(w);
    has_task = w->state.run_has_task;
    is_same = w->state.is_waiting && w->nwaits == w->last_wait;
    w->last_wait = w->nwaits;
    pthread_mutex_unlock(&w->lock);
    w->waited_s = is_same ? w->waited_s + (has_task ? 0 : passed) : 0;
    if (w->waited_s > timeout_s)
        watchdog_on_timeout(w, true);
}

/*
 * Return how many seconds of the gap between two ticks count toward timeouts: only tick_s if the gap is so long that
 * this process must have been stopped.
 */
static double discount_pause(struct meg_watchdog *w, double gap, double tick_s)
{
    if (gap > tick_s + 1) {
        w->paused_s = gap;
        w->since_pause_s = 0;
        return tick_s;
    }
    w->since_pause_s += gap;
    if (w->since_pause_s > PAUSE_S)
        w->paused_s = 0;
    return gap;
}

static void tick(struct meg_watchdog *w, double passed)
{
    w->since_heartbeat_s += passed;
    if (w->since_heartbeat_s >= w->heartbeat_s) {
        struct watchdog_rank_state state = watchdog_own_state(w);

        watchdog_send_all(w, WATCHDOG_HEARTBEAT, &state, sizeof state);
        w->since_heartbeat_s = 0;
    }
    check_heartbeats(w, passed);
    check_tasks(w, passed);
    check_wait_timeout(w, passed);
    watchdog_check_exit(w, passed);
}

void *watchdog_monitor(void *arg)
{
    struct meg_watchdog *w = arg;
    const double tick_s = w->heartbeat_s < 0.25 ? w->heartbeat_s : 0.25;
    double before = meg_now_s();

    for (;;) {
        struct epoll_event event[64];
        const int n = epoll_wait(w->epoll, event, 64, (int)(tick_s * 1000));
        const double now = meg_now_s();
        const double passed = discount_pause(w, now - before, tick_s);
        bool is_woken = false;

        before = now;
        for (int i = 0; i < n; i++) {
            if (event[i].data.ptr == &w->listen_fd)
                watchdog_accept_conns(w);
            else if (event[i].data.ptr == &w->wake_pipe)
                is_woken = true;
            else
                watchdog_handle_conn(w, event[i].data.ptr, event[i].events);
        }
        if (is_woken)
            handle_wakeup(w);
        if (is_over(w))
            return NULL;
        tick(w, passed);
    }
}
