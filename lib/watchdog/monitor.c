/*
 * The monitor thread receives frames, checks heartbeats and timeouts, and ends the process.
 *
 * All ranks run the same loop over their connections: rank 0 has a connection to each other rank, and each other rank
 * has one to rank 0.  Rank 0 reports a failure and ends the run.  If rank 0 does not, one of ranks 1 to 3 reports the
 * failure, and each rank ends itself.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/log.h"
#include "file/temporary.h"
#include "watchdog/internal.h"

enum { FALLBACK_REPORTERS = 3 }; /* if rank 0 prints no report, rank 1 does; if rank 1 does not, rank 2; then rank 3 */
#define JOIN_S 10.0              /* time after which an unauthenticated connection is closed */
#define ANSWER_S 1.0             /* time limit for a rank to reply to WATCHDOG_QUERY, and for rank 0 to report */
#define ABORT_S 2.0 /* time limit for the launcher to end this process after another rank aborted the run */
#define TERM_S 0.3  /* delay from SIGTERM until this process exits, unless a rank is lost meanwhile */
/* For this time after a pause of this process that exceeded the timeout, a report of a lost rank mentions the pause. */
#define PAUSE_S 5.0
/* Rank 0 logs a task if tasks have run for TASK_LOG_S without interruption, and then every TASK_LOG_AGAIN_S. */
#define TASK_LOG_S 10.0
#define TASK_LOG_AGAIN_S 60.0

static bool is_peer(const struct watchdog_conn *c)
{
    return c->fd >= 0 && c->rank >= 0 && !c->has_closed;
}

static struct watchdog_rank_state own_state(struct meg_watchdog *w)
{
    struct watchdog_rank_state state;

    pthread_mutex_lock(&w->lock);
    state = w->state;
    pthread_mutex_unlock(&w->lock);
    return state;
}

static double wait_timeout_s(struct meg_watchdog *w)
{
    double s;

    pthread_mutex_lock(&w->lock);
    s = watchdog_timeout_s(w);
    pthread_mutex_unlock(&w->lock);
    return s;
}

/* ---- exiting ------------------------------------------------------------------------------------ */

/* Print one line to stderr without acquiring the locks of stdio and of the log, which another thread may hold. */
static void print_line(const struct meg_watchdog *w, const char *text)
{
    struct meg_str s = { 0 };
    size_t start;

    meg_str_printf(&s, "%s", isatty(STDERR_FILENO) ? "\r\033[K" : "");
    start = s.n;
    meg_str_printf(&s, "%s", meg_progname());
    if (w->rank)
        meg_str_printf(&s, "[%d]", w->rank);
    meg_str_printf(&s, ": %s", text);
    meg_log_sanitize(s.s + start);
    meg_str_add(&s, "\n", 1);
    if (write(STDERR_FILENO, s.s, s.n) < 0)
        return; /* a failure cannot be reported */
    meg_str_free(&s);
}

static void exit_now(struct meg_watchdog *w, int status) MEG_NORETURN;
static void exit_now(struct meg_watchdog *w, int status)
{
    watchdog_abort(w);
    meg_temporary_exit(status);
}

static void send_all(struct meg_watchdog *w, enum watchdog_frame_type type, const void *payload, size_t n)
{
    for (int i = 0; i < w->nconns; i++)
        if (is_peer(&w->conn[i]))
            watchdog_send(&w->conn[i], type, payload, n);
}

/* Exit with this status; on rank 0, first request the other ranks to exit. */
static void exit_all(struct meg_watchdog *w, int status) MEG_NORETURN;
static void exit_all(struct meg_watchdog *w, int status)
{
    struct watchdog_exit message = { .status = status };

    if (watchdog_is_server(w))
        send_all(w, WATCHDOG_EXIT_ALL, &message, sizeof message);
    exit_now(w, status);
}

/* Exit because of a lost rank or a timeout; ranks up to FALLBACK_REPORTERS first print the report. */
static void report_and_exit(struct meg_watchdog *w) MEG_NORETURN;
static void report_and_exit(struct meg_watchdog *w)
{
    const struct watchdog_snapshot v = { .size = w->size,
                                         .rank = w->rank,
                                         .own_state = own_state(w),
                                         .host = w->host,
                                         .conn = w->conn,
                                         .nconns = w->nconns,
                                         .timeout_s = wait_timeout_s(w) };
    struct meg_str s = { 0 };

    if (w->rank > FALLBACK_REPORTERS)
        exit_now(w, meg_exit_status(MEG_EPEER));
    if (w->cause == WATCHDOG_CAUSE_LOST && w->paused_s > w->timeout_s)
        meg_str_printf(&s, "rank %d of %d on %s was suspended for %.1f s, longer than the timeout of the other ranks; ",
                       w->rank, w->size, w->host, w->paused_s);
    if (w->cause == WATCHDOG_CAUSE_LOST)
        watchdog_report_lost(&s, &v, w->lost_conn);
    else
        watchdog_report_timeout(&s, &v);
    print_line(w, s.s);
    exit_all(w, meg_exit_status(MEG_EPEER));
}

void watchdog_exit_all(struct meg_watchdog *w, int status, const char *fmt, ...)
{
    char text[400];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    print_line(w, text);
    exit_all(w, status);
}

/*
 * Inform the other ranks of the SIGTERM that this process received, then end this process by SIGTERM.  Call this if no
 * lost rank was found that explains the signal.  Rank 0 prints one message for all ranks: here if rank 0 received the
 * signal, and otherwise in report_peer_exit.
 */
static void exit_on_sigterm(struct meg_watchdog *w) MEG_NORETURN;
static void exit_on_sigterm(struct meg_watchdog *w)
{
    struct watchdog_exit message = { 128 + SIGTERM, 0, "it received SIGTERM" };

    if (watchdog_is_server(w)) {
        print_line(w, "ended by SIGTERM");
        send_all(w, WATCHDOG_EXIT_ALL, &message, sizeof message);
    } else {
        send_all(w, WATCHDOG_EXITING, &message, sizeof message);
    }
    watchdog_abort(w);
    meg_temporary_unlink_all();
    signal(SIGTERM, SIG_DFL);
    kill(getpid(), SIGTERM);
    for (;;)
        pause();
}

/*
 * Schedule the exit.  Rank 0 exits after server_s, and rank 1 after other_s.  Rank 2 exits one second after rank 1, and
 * all other ranks one second after rank 2.  A rank therefore reports only if the lower ranks did not.
 */
static void schedule_exit(struct meg_watchdog *w, enum watchdog_exit_cause cause, double server_s, double other_s)
{
    const int order = w->rank < FALLBACK_REPORTERS ? w->rank : FALLBACK_REPORTERS;

    w->cause = cause;
    w->grace_s = watchdog_is_server(w) ? server_s : other_s + (order - 1);
}

/* Make the lost connection c the cause of the exit.  This cause replaces a timeout or SIGTERM, which it explains. */
static void on_conn_lost(struct meg_watchdog *w, const struct watchdog_conn *c)
{
    if (w->cause == WATCHDOG_CAUSE_LOST || w->cause == WATCHDOG_CAUSE_PEER_EXIT)
        return;
    w->lost_conn = c;
    schedule_exit(w, WATCHDOG_CAUSE_LOST, 0, 0);
}

/*
 * Schedule an exit because of a timeout, unless one is already scheduled.  Rank 0 queries the state of all ranks; any
 * other rank informs rank 0.  must_exit is false if a late heartbeat is the only problem.  check_exit cancels such an
 * exit when all peers have sent a heartbeat.
 */
static void on_timeout(struct meg_watchdog *w, bool must_exit)
{
    w->must_exit |= must_exit;
    if (w->cause != WATCHDOG_CAUSE_NONE)
        return;
    for (int i = 0; i < w->nconns; i++)
        w->conn[i].has_replied = false;
    schedule_exit(w, WATCHDOG_CAUSE_TIMEOUT, ANSWER_S, 2 * ANSWER_S);
    send_all(w, watchdog_is_server(w) ? WATCHDOG_QUERY : WATCHDOG_TIMEOUT, NULL, 0);
}

static bool all_replied(const struct meg_watchdog *w)
{
    for (int i = 0; i < w->nconns; i++)
        if (is_peer(&w->conn[i]) && !w->conn[i].has_replied)
            return false;
    return true;
}

/*
 * Subtract `passed` seconds from the grace period of a scheduled exit, and exit when the period is over.  If all peers
 * have replied after a timeout, cancel the exit unless must_exit is set.  If must_exit is set and all peers have
 * replied, rank 0 exits at once, and the other ranks extend the period so that rank 0 can report.
 */
static void check_exit(struct meg_watchdog *w, double passed)
{
    if (w->cause == WATCHDOG_CAUSE_NONE)
        return;
    w->grace_s -= passed;
    if (w->cause == WATCHDOG_CAUSE_TIMEOUT && all_replied(w)) {
        if (!w->must_exit)
            w->cause = WATCHDOG_CAUSE_NONE; /* heartbeats were only delayed */
        else if (watchdog_is_server(w))
            report_and_exit(w);
        else if (w->grace_s <= 0)
            w->grace_s = ANSWER_S; /* rank 0 is alive and will report */
    }
    if (w->cause == WATCHDOG_CAUSE_NONE || w->grace_s > 0)
        return;
    if (w->cause == WATCHDOG_CAUSE_SIGTERM)
        exit_on_sigterm(w);
    if (w->cause == WATCHDOG_CAUSE_PEER_EXIT)
        exit_now(w, w->peer_status);
    report_and_exit(w);
}

/* ---- frames ------------------------------------------------------------------------------------- */

static bool is_joined(const struct meg_watchdog *w, int rank)
{
    for (int i = 0; i < w->nconns; i++)
        if (w->conn[i].rank == rank)
            return true;
    return false;
}

/* End the run because a join request contradicts the size or the ranks of the run. */
static void exit_on_conflict(struct meg_watchdog *w, struct watchdog_conn *c, const char *fmt, ...) MEG_NORETURN
    MEG_PRINTF(3, 4);
static void exit_on_conflict(struct meg_watchdog *w, struct watchdog_conn *c, const char *fmt, ...)
{
    struct watchdog_exit message = { .status = meg_exit_status(MEG_EUSAGE) };
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(message.reason, sizeof message.reason, fmt, ap);
    va_end(ap);
    print_line(w, message.reason);
    watchdog_send(c, WATCHDOG_EXIT_ALL, &message, sizeof message);
    exit_all(w, message.status);
}

/* Send a process the reason why it cannot join; the run continues without it. */
static void refuse(struct watchdog_conn *c, const char *fmt, ...) MEG_PRINTF(2, 3);
static void refuse(struct watchdog_conn *c, const char *fmt, ...)
{
    struct watchdog_exit message = { .status = meg_exit_status(MEG_EUSAGE) };
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(message.reason, sizeof message.reason, fmt, ap);
    va_end(ap);
    watchdog_send(c, WATCHDOG_EXIT_ALL, &message, sizeof message);
}

/* Refuse a process with the run's token after all ranks have joined: it belongs to another run with the same id. */
static void refuse_late_join(struct meg_watchdog *w, struct watchdog_conn *c, int rank)
{
    struct meg_str s = { 0 };

    refuse(c,
           "all %d ranks of another run have already joined at this address; start this run with a different "
           "MASTER_PORT or --rdzv-id",
           w->size);
    if (w->has_warned)
        return;
    w->has_warned = true;
    meg_str_printf(&s,
                   "refused a process on %s that claims to be rank %d, because all %d ranks have joined: another "
                   "run uses the same MASTER_PORT",
                   c->host, rank, w->size);
    print_line(w, s.s);
    meg_str_free(&s);
}

/* Compare the tokens in constant time. */
static bool has_token(const struct meg_watchdog *w, const struct watchdog_join_request *j)
{
    unsigned char differs = 0;

    for (size_t i = 0; i < sizeof j->token; i++)
        differs |= j->token[i] ^ w->endpoint.token[i];
    return !differs;
}

/* Accept or refuse a join request.  Returns false if the connection must be closed. */
static bool handle_join(struct meg_watchdog *w, struct watchdog_conn *c, const struct watchdog_join_request *j)
{
    struct watchdog_welcome welcome;

    if (!watchdog_is_server(w) || c->rank >= 0)
        return false;
    if (!has_token(w, j)) {
        refuse(c, "another run uses this port; set a different MASTER_PORT, or the same --rdzv-id for all ranks");
        return false;
    }
    watchdog_copy_name(c->host, j->host, sizeof c->host);
    memcpy(welcome.host, w->host, sizeof welcome.host);
    if (w->njoined == w->size) {
        refuse_late_join(w, c, j->rank);
        return false;
    }
    if (j->size != w->size)
        exit_on_conflict(w, c, "rank %d on %s was started as one of %d ranks, but rank 0 on %s as one of %d", j->rank,
                         c->host, j->size, w->host, w->size);
    if (j->rank < 0 || j->rank >= w->size)
        exit_on_conflict(w, c, "a process on %s claims to be rank %d, but the ranks are 0 to %d", c->host, j->rank,
                         w->size - 1);
    if (j->rank == 0 || is_joined(w, j->rank))
        exit_on_conflict(w, c, "two processes claim to be rank %d, one of them on %s", j->rank, c->host);
    c->rank = j->rank;
    pthread_mutex_lock(&w->lock);
    w->has_joined[c->rank] = true;
    w->njoined++;
    pthread_mutex_unlock(&w->lock);
    watchdog_send(c, WATCHDOG_WELCOME, &welcome, sizeof welcome);
    return true;
}

/*
 * Report why a peer exits.  The report has level info, because the peer itself prints the reason.  A peer that is ended
 * by SIGTERM prints no reason.  For such a peer, the report is printed at any log level, unless this process received
 * SIGTERM.
 */
static void report_peer_exit(struct meg_watchdog *w, const struct watchdog_conn *c, const struct watchdog_exit *message)
{
    struct meg_str s = { 0 };

    meg_str_printf(&s, "rank %d of %d on %s ended the run: %.*s", c->rank, w->size, c->host,
                   (int)sizeof message->reason - 1, message->reason);
    if (message->status != 128 + SIGTERM)
        meg_info("%s", s.s);
    else if (!w->was_terminated)
        print_line(w, s.s);
    meg_str_free(&s);
}

/*
 * Exit with the status of the peer.  If the peer aborts the run, first wait up to ABORT_S for the launcher to end this
 * process.  If this process exited at once, the launcher could report it as the first rank that failed.
 */
static void exit_after_peer(struct meg_watchdog *w, const struct watchdog_exit *message)
{
    if (!message->is_abort)
        exit_now(w, message->status);
    w->peer_status = message->status;
    meg_temporary_unlink_all(); /* the launcher may use SIGKILL */
    schedule_exit(w, WATCHDOG_CAUSE_PEER_EXIT, ABORT_S, ABORT_S);
}

/*
 * Handle a frame.  Returns false if the frame is invalid in this state of the connection, or a join request was
 * refused.
 */
static bool handle_frame(struct meg_watchdog *w, struct watchdog_conn *c, enum watchdog_frame_type type,
                         const void *payload, size_t nbytes)
{
    struct watchdog_join_request j;
    struct watchdog_exit message;
    struct watchdog_rank_state state;

    if (c->rank < 0 && type != WATCHDOG_JOIN)
        return false;
    c->since_heard_s = 0;
    switch (type) {
    case WATCHDOG_JOIN: memcpy(&j, payload, sizeof j); return handle_join(w, c, &j);
    case WATCHDOG_WELCOME: return true;
    case WATCHDOG_HEARTBEAT:
        memcpy(&c->state, payload, sizeof c->state);
        c->has_replied = true;
        return true;
    case WATCHDOG_QUERY:
        state = own_state(w);
        watchdog_send(c, WATCHDOG_HEARTBEAT, &state, sizeof state);
        return true;
    case WATCHDOG_TIMEOUT: on_timeout(w, true); return true;
    case WATCHDOG_EXITING:
        memcpy(&message, payload, sizeof message);
        report_peer_exit(w, c, &message);
        send_all(w, WATCHDOG_EXIT_ALL, &message, sizeof message);
        exit_after_peer(w, &message);
        return true;
    case WATCHDOG_EXIT_ALL:
        memcpy(&message, payload, sizeof message);
        exit_after_peer(w, &message);
        return true;
    case WATCHDOG_STORE_VALUE:
    case WATCHDOG_STORE_RESULT: return watchdog_store_receive(w, c, type, payload, nbytes);
    case WATCHDOG_BYE: c->has_closed = true; return true;
    }
    return false;
}

/*
 * Handle all frames that have arrived on c.  If the connection of a rank fails before WATCHDOG_BYE, the rank is lost.
 * Close any other connection that fails.  Close a connection if handle_frame rejects one of its frames.
 */
static void read_conn(struct meg_watchdog *w, struct watchdog_conn *c)
{
    enum watchdog_frame_type type;
    const void *payload;
    size_t n;
    int r = 0;

    while (c->fd >= 0 && (r = watchdog_recv(c, &type, &payload, &n)) == 1 && handle_frame(w, c, type, payload, n))
        ;
    if (r == 0)
        return;
    if (r < 0 && is_peer(c)) {
        on_conn_lost(w, c);
        epoll_ctl(w->epoll, EPOLL_CTL_DEL, c->fd, NULL);
    } else if (c->fd >= 0) {
        watchdog_close_conn(c);
    }
}

static void handle_conn(struct meg_watchdog *w, struct watchdog_conn *c, uint32_t events)
{
    if (events & EPOLLOUT)
        watchdog_send_queued(c);
    read_conn(w, c);
}

/* Events are edge-triggered: each handler reads until nothing is left, and sends until the socket is full. */
bool watchdog_epoll_add(struct meg_watchdog *w, int fd, void *tag)
{
    struct epoll_event e = { .events = EPOLLIN | EPOLLOUT | EPOLLET, .data.ptr = tag };

    return epoll_ctl(w->epoll, EPOLL_CTL_ADD, fd, &e) == 0;
}

/*
 * Return an entry for a new connection.  If no entry is free, close the oldest unauthenticated connection and return
 * its entry: idle connections must not prevent a rank from joining.  There are more entries than ranks.
 */
static struct watchdog_conn *alloc_conn(struct meg_watchdog *w)
{
    struct watchdog_conn *oldest = NULL;

    for (int i = 0; i < w->nconns; i++) {
        struct watchdog_conn *c = &w->conn[i];

        if (c->fd < 0)
            return c;
        if (c->rank < 0 && (!oldest || c->accept_seq < oldest->accept_seq))
            oldest = c;
    }
    MEG_ASSERT(oldest);
    watchdog_close_conn(oldest);
    return oldest;
}

static void accept_conns(struct meg_watchdog *w)
{
    int fd;

    while ((fd = watchdog_accept(w->listen_fd)) >= 0) {
        struct watchdog_conn *c = alloc_conn(w);

        if (watchdog_epoll_add(w, fd, c)) {
            c->fd = fd;
            c->accept_seq = w->naccepted++;
        } else {
            close(fd);
        }
    }
}

/* ---- the thread --------------------------------------------------------------------------------- */

/* Handle the requests of the main thread and of the signal handler. */
static void handle_wakeup(struct meg_watchdog *w)
{
    char bytes[64];

    while (read(w->wake_pipe[0], bytes, sizeof bytes) > 0)
        ;
    if (w->was_terminated && w->cause == WATCHDOG_CAUSE_PEER_EXIT)
        exit_now(w, w->peer_status);
    if (w->was_terminated && w->cause == WATCHDOG_CAUSE_NONE) {
        w->cause = WATCHDOG_CAUSE_SIGTERM;
        w->grace_s = TERM_S;
    }
    pthread_mutex_lock(&w->lock);
    if (w->is_exiting && !w->has_sent_exit) {
        send_all(w, watchdog_is_server(w) ? WATCHDOG_EXIT_ALL : WATCHDOG_EXITING, &w->exit, sizeof w->exit);
        w->has_sent_exit = true;
        pthread_cond_broadcast(&w->exit_sent_cond);
    }
    if (w->is_closing && !w->has_sent_bye) {
        send_all(w, WATCHDOG_BYE, NULL, 0);
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
        is_closed &= !is_peer(&w->conn[i]) || !w->conn[i].nout;
    return is_closed || w->has_sent_exit;
}

static void check_heartbeats(struct meg_watchdog *w, double passed)
{
    for (int i = 0; i < w->nconns; i++) {
        struct watchdog_conn *c = &w->conn[i];

        if (c->fd >= 0)
            c->since_heard_s += passed;
        if (is_peer(c) && c->since_heard_s > w->timeout_s)
            on_timeout(w, false);
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

        if (is_peer(c) && (c->state.task[0] || (c->rank == 0 && c->state.run_has_task)) &&
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
        on_timeout(w, true);
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
        struct watchdog_rank_state state = own_state(w);

        send_all(w, WATCHDOG_HEARTBEAT, &state, sizeof state);
        w->since_heartbeat_s = 0;
    }
    check_heartbeats(w, passed);
    check_tasks(w, passed);
    check_wait_timeout(w, passed);
    check_exit(w, passed);
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
                accept_conns(w);
            else if (event[i].data.ptr == &w->wake_pipe)
                is_woken = true;
            else
                handle_conn(w, event[i].data.ptr, event[i].events);
        }
        if (is_woken)
            handle_wakeup(w);
        if (is_over(w))
            return NULL;
        tick(w, passed);
    }
}
