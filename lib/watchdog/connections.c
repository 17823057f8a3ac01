/* connections.c - accept the connections of other ranks, and handle the frames that arrive on them. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>
#include "base/log.h"
#include "file/temporary.h"
#include "watchdog/internal.h"

#define ABORT_S 2.0 /* time limit for the launcher to end this process after another rank aborted the run */

static bool is_joined(const struct meg_watchdog *w, int rank)
{
    for (int i = 0; i < w->nconns; i++)
        if (w->conn[i].rank == rank)
            return true;
    return false;
}

/* End the run because a join request contradicts the size or the ranks of the run. */
static MEG_NORETURN MEG_PRINTF(3, 4) void exit_on_conflict(struct meg_watchdog *w, struct watchdog_conn *c,
                                                           const char *fmt, ...)
{
    struct watchdog_exit message = { .status = meg_exit_status(MEG_EUSAGE) };

    MEG_FORMAT_ARGS(message.reason, fmt);
    watchdog_print(w, message.reason);
    watchdog_send(c, WATCHDOG_EXIT_ALL, &message, sizeof message);
    watchdog_end_all(w, message.status);
}

/* Send a process the reason why it cannot join; the run continues without it. */
static MEG_PRINTF(2, 3) void refuse(struct watchdog_conn *c, const char *fmt, ...)
{
    struct watchdog_exit message = { .status = meg_exit_status(MEG_EUSAGE) };

    MEG_FORMAT_ARGS(message.reason, fmt);
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
    watchdog_print(w, s.s);
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
        watchdog_print(w, s.s);
    meg_str_free(&s);
}

/*
 * Exit with the status of the peer.  If the peer aborts the run, first wait up to ABORT_S for the launcher to end this
 * process.  If this process exited at once, the launcher could report it as the first rank that failed.
 */
static void exit_after_peer(struct meg_watchdog *w, const struct watchdog_exit *message)
{
    if (!message->is_abort)
        watchdog_exit_now(w, message->status);
    w->peer_status = message->status;
    meg_temporary_unlink_all(); /* the launcher may use SIGKILL */
    watchdog_schedule_exit(w, WATCHDOG_CAUSE_PEER_EXIT, ABORT_S, ABORT_S);
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
        state = watchdog_own_state(w);
        watchdog_send(c, WATCHDOG_HEARTBEAT, &state, sizeof state);
        return true;
    case WATCHDOG_TIMEOUT: watchdog_on_timeout(w, true); return true;
    case WATCHDOG_EXITING:
        memcpy(&message, payload, sizeof message);
        report_peer_exit(w, c, &message);
        watchdog_send_all(w, WATCHDOG_EXIT_ALL, &message, sizeof message);
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
    if (r < 0 && watchdog_is_peer(c)) {
        watchdog_on_conn_lost(w, c);
        epoll_ctl(w->epoll, EPOLL_CTL_DEL, c->fd, NULL);
    } else if (c->fd >= 0) {
        watchdog_close_conn(c);
    }
}

void watchdog_handle_conn(struct meg_watchdog *w, struct watchdog_conn *c, uint32_t events)
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

void watchdog_accept_conns(struct meg_watchdog *w)
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
