/*
 * watchdog.c - the main thread's side of the watchdog: opening, closing, and the state that it shares with the monitor
 * thread.
 */
#define _GNU_SOURCE
#include "watchdog/watchdog.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/err.h"
#include "base/hash.h"
#include "base/log.h"
#include "file/temporary.h"
#include "watchdog/internal.h"

enum { MAX_PENDING = 64 };     /* maximum number of unauthenticated connections */
#define STARTUP_TIMEOUT_S 60.0 /* minimum timeout of a wait before the first step is complete */
#define HEARTBEAT_S 0.1        /* heartbeat interval; longer for 1000 ranks or more, shorter for a short timeout */
#define WELCOME_S 10.0         /* timeout of the reply to a join request */
#define REPORT_WAIT_S 8.0      /* time within which the watchdog prints its report, if there is one */

void watchdog_wake(struct meg_watchdog *w)
{
    const int before = errno;

    if (write(w->wake_pipe[1], "", 1) < 0)
        errno = before; /* the pipe is full, which wakes the thread as well */
}

/* The watchdog that handles SIGTERM; global, as a signal handler has no argument for a pointer. */
static struct meg_watchdog *volatile sigterm_watchdog;

static void on_sigterm(int sig)
{
    struct meg_watchdog *w = sigterm_watchdog;

    (void)sig;
    if (!w)
        return;
    w->was_terminated = 1;
    watchdog_wake(w);
}

/*
 * Delay SIGTERM until a report can be printed.  Launchers send SIGTERM to the remaining ranks after a rank is lost.  If
 * the program has its own handler for SIGTERM, keep that handler.
 */
static void delay_sigterm(struct meg_watchdog *w)
{
    struct sigaction a;

    sigaction(SIGTERM, NULL, &a);
    if (a.sa_handler != SIG_DFL)
        return;
    sigterm_watchdog = w;
    memset(&a, 0, sizeof a);
    a.sa_handler = on_sigterm;
    a.sa_flags = SA_RESTART | SA_ONSTACK; /* the signal may interrupt a matrix multiplication (cpu/gemm.c) */
    sigaction(SIGTERM, &a, NULL);
}

static size_t read_text(const char *path, char *out, size_t cap)
{
    FILE *f = fopen(path, "r");
    size_t n = 0;

    if (f) {
        n = fread(out, 1, cap, f);
        fclose(f);
    }
    return n;
}

/*
 * Return whether all ranks can connect over loopback, that is, run under one kernel and in one network namespace.
 */
static bool all_share_loopback(const struct meg_watchdog_bootstrap *b)
{
    char id[256];
    size_t n = read_text("/proc/sys/kernel/random/boot_id", id, sizeof id / 2);
    const ssize_t m = readlink("/proc/self/ns/net", id + n, sizeof id - n);
    int64_t max[2]; /* maxima over the ranks of hash(id) and ~hash(id); the hashes are equal if max[0] == ~max[1] */

    max[0] = (int64_t)meg_xxh3_64(id, n + (m > 0 ? (size_t)m : 0));
    max[1] = ~max[0];
    b->all_reduce_max(b->ctx, max, 2);
    return n && m > 0 && max[0] == ~max[1];
}

static void raise_fd_limit(const struct meg_watchdog *w)
{
    struct rlimit l;

    if (getrlimit(RLIMIT_NOFILE, &l) < 0 || l.rlim_cur >= (rlim_t)w->nconns + MAX_PENDING)
        return;
    l.rlim_cur = l.rlim_max;
    setrlimit(RLIMIT_NOFILE, &l);
}

static void alloc_conns(struct meg_watchdog *w, int n)
{
    w->nconns = n;
    w->conn = meg_new((size_t)n * sizeof *w->conn);
    for (int i = 0; i < n; i++)
        w->conn[i].fd = w->conn[i].rank = -1;
}

static bool start_thread(struct meg_watchdog *w)
{
    sigset_t all, before;
    int failed;

    if (pipe2(w->wake_pipe, O_CLOEXEC | O_NONBLOCK) < 0 || (w->epoll = epoll_create1(EPOLL_CLOEXEC)) < 0 ||
        !watchdog_epoll_add(w, w->wake_pipe[0], &w->wake_pipe))
        return false;
    if (watchdog_is_server(w) ? !watchdog_epoll_add(w, w->listen_fd, &w->listen_fd)
                              : !watchdog_epoll_add(w, w->conn[0].fd, &w->conn[0]))
        return false;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    failed = pthread_create(&w->thread, NULL, watchdog_monitor, w);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = failed;
    w->is_open = !failed;
    return w->is_open;
}

bool watchdog_serve(struct meg_watchdog *w, bool is_local, int port)
{
    alloc_conns(w, w->size - 1 + MAX_PENDING);
    raise_fd_limit(w);
    w->listen_fd = watchdog_listen(&w->endpoint, is_local, port);
    if (w->bootstrap.rendezvous)
        memcpy(w->endpoint.token, w->bootstrap.rendezvous->token, sizeof w->endpoint.token);
    memcpy(w->endpoint.host, w->host, sizeof w->endpoint.host);
    return w->listen_fd >= 0 && start_thread(w);
}

/* Print why rank 0 refused this process, and exit with the status that rank 0 sent. */
static MEG_NORETURN void exit_refused(const struct meg_watchdog *w, const void *payload)
{
    const struct meg_rendezvous *r = w->bootstrap.rendezvous;
    const char *listener = !r ? w->endpoint.host : r->is_local ? "this machine" : r->host;
    struct watchdog_exit refusal;
    char reason[sizeof refusal.reason];

    memcpy(&refusal, payload, sizeof refusal);
    watchdog_copy_name(reason, refusal.reason, sizeof reason);
    meg_warn("rank %d of %d on %s was refused by the process that listens on port %d of %s: %s", w->rank, w->size,
             w->host, w->endpoint.port, listener, reason);
    meg_temporary_exit(refusal.status);
}

enum answer {
    ANSWER_WELCOME,
    ANSWER_NONE,   /* no process listens, or the connection was closed: retrying may succeed */
    ANSWER_FOREIGN /* the listener sent no reply in time, or a reply that rank 0 would not send */
};

/* Connect to rank 0 and send a join request.  A refusal ends the process.  Sets errno unless the reply is a welcome. */
static enum answer ask_to_join(const struct meg_watchdog *w, struct watchdog_conn *c)
{
    struct watchdog_join_request j = { .rank = w->rank, .size = w->size };
    struct pollfd p = { .events = POLLIN };
    enum watchdog_frame_type type;
    const void *payload;
    size_t n;
    int r = 0;

    watchdog_close_conn(c);
    if ((c->fd = p.fd = watchdog_connect(&w->endpoint)) < 0)
        return ANSWER_NONE;
    memcpy(j.token, w->endpoint.token, sizeof j.token);
    memcpy(j.host, w->host, sizeof j.host);
    watchdog_send(c, WATCHDOG_JOIN, &j, sizeof j);
    while (r == 0 && poll(&p, 1, (int)(WELCOME_S * 1000)) > 0)
        r = watchdog_recv(c, &type, &payload, &n);
    if (r == 1 && type == WATCHDOG_EXIT_ALL)
        exit_refused(w, payload);
    if (r == 1 && type == WATCHDOG_WELCOME) {
        watchdog_copy_name(c->host, payload, sizeof c->host);
        return ANSWER_WELCOME;
    }
    errno = ECONNREFUSED;
    return r < 0 && c->nread == 0 ? ANSWER_NONE : ANSWER_FOREIGN;
}

/* A connection that received no welcome stays open, so that shut_down can send WATCHDOG_BYE over it. */
bool watchdog_join(struct meg_watchdog *w, double patience_s)
{
    const double start = meg_now_s();
    enum answer answer;

    alloc_conns(w, 1);
    if (!w->endpoint.is_open)
        return false;
    while ((answer = ask_to_join(w, &w->conn[0])) == ANSWER_NONE && meg_now_s() - start <= patience_s)
        usleep(20000);
    if (answer != ANSWER_WELCOME)
        return false;
    w->conn[0].rank = 0;
    return start_thread(w);
}

/*
 * Stop the monitor thread, which sends WATCHDOG_BYE.  If the thread does not run, send WATCHDOG_BYE here, so that rank
 * 0 does not report a lost rank.
 */
static void shut_down(struct meg_watchdog *w)
{
    for (int i = 0; i < w->nconns && !w->is_open; i++)
        watchdog_send(&w->conn[i], WATCHDOG_BYE, NULL, 0);
    if (w->is_open) {
        pthread_mutex_lock(&w->lock);
        w->is_closing = true;
        pthread_mutex_unlock(&w->lock);
        watchdog_wake(w);
        pthread_join(w->thread, NULL);
        w->is_open = false;
    }
    for (int i = 0; i < w->nconns; i++)
        watchdog_close_conn(&w->conn[i]);
    w->nconns = 0;
    free(w->conn);
    w->conn = NULL;
    free(w->has_joined);
    w->has_joined = NULL;
    watchdog_store_clear(w);
    watchdog_close_fd(&w->listen_fd);
    watchdog_close_fd(&w->epoll);
    watchdog_close_fd(&w->wake_pipe[0]);
    watchdog_close_fd(&w->wake_pipe[1]);
}

/*
 * Shut down the watchdog on all ranks if any rank could not join.  If the others kept it open, they would block in the
 * barrier of meg_watchdog_close, because a rank that could not join does not call this barrier.  `failure` is the errno
 * of this rank.
 */
static void close_unless_all_joined(struct meg_watchdog *w, bool is_connected, int failure)
{
    const int64_t own = is_connected ? 0 : w->size - w->rank;
    int64_t failed = own;

    w->bootstrap.all_reduce_max(w->bootstrap.ctx, &failed, 1);
    if (failed && failed == w->size - w->rank) /* the lowest rank that failed warns */
        meg_warn("rank %d on %s cannot %s the watchdog of rank 0 on %s: %s; a lost rank is detected only when a "
                 "collective times out",
                 w->rank, w->host, watchdog_is_server(w) ? "open" : "join", w->endpoint.host, strerror(failure));
    if (failed)
        shut_down(w);
}

/* Connect to an endpoint that rank 0 broadcasts over the communicator. */
static void open_over_communicator(struct meg_watchdog *w)
{
    const struct meg_watchdog_bootstrap *b = &w->bootstrap;
    const bool is_local = all_share_loopback(b);
    bool is_connected = false;
    int failure;

    if (watchdog_is_server(w))
        is_connected = watchdog_serve(w, is_local, 0);
    failure = errno;
    b->broadcast(b->ctx, &w->endpoint, sizeof w->endpoint);
    if (!watchdog_is_server(w)) {
        is_connected = watchdog_join(w, 0);
        failure = errno;
    }
    close_unless_all_joined(w, is_connected, failure);
}

struct meg_watchdog *watchdog_new(const struct meg_watchdog_bootstrap *b)
{
    const double heartbeat_s = HEARTBEAT_S * (1 + b->size / 1000); /* rank 0 receives at most about 10,000 per second */
    struct meg_watchdog *w = meg_new(sizeof *w);

    w->bootstrap = *b;
    w->rank = b->rank;
    w->size = b->size;
    w->timeout_s = b->timeout_s;
    w->heartbeat_s = heartbeat_s < b->timeout_s / 8 ? heartbeat_s : b->timeout_s / 8;
    w->listen_fd = w->epoll = w->wake_pipe[0] = w->wake_pipe[1] = -1;
    w->state.step = -1;
    w->has_joined = meg_new((size_t)b->size * sizeof *w->has_joined);
    w->has_joined[0] = true;
    w->njoined = 1;
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->exit_sent_cond, NULL);
    return w;
}

void meg_watchdog_open(struct meg_watchdog **out, const struct meg_watchdog_bootstrap *b)
{
    struct meg_watchdog *w;

    *out = NULL;
    if (b->size == 1)
        return;
    *out = w = watchdog_new(b);
    gethostname(w->host, sizeof w->host - 1);
    if (b->rendezvous)
        watchdog_rendezvous(w);
    else
        open_over_communicator(w);
    if (w->is_open)
        delay_sigterm(w);
}

void meg_watchdog_close(struct meg_watchdog *w)
{
    if (!w)
        return;
    if (w->is_open)
        w->bootstrap.barrier(w->bootstrap.ctx);
    if (sigterm_watchdog == w)
        sigterm_watchdog = NULL;
    shut_down(w);
    pthread_cond_destroy(&w->exit_sent_cond);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

bool meg_watchdog_is_open(const struct meg_watchdog *w)
{
    return w && w->is_open;
}

void meg_watchdog_set_abort(struct meg_watchdog *w, void (*abort)(void))
{
    if (!w)
        return;
    pthread_mutex_lock(&w->lock);
    w->abort = abort;
    pthread_mutex_unlock(&w->lock);
}

void watchdog_abort(struct meg_watchdog *w)
{
    void (*abort)(void);

    pthread_mutex_lock(&w->lock);
    abort = w->abort;
    w->abort = NULL;
    pthread_mutex_unlock(&w->lock);
    if (abort)
        abort();
}

void meg_watchdog_set_step(struct meg_watchdog *w, int64_t step)
{
    if (!w)
        return;
    pthread_mutex_lock(&w->lock);
    w->state.step = step;
    w->nsteps++;
    pthread_mutex_unlock(&w->lock);
}

double watchdog_timeout_s(const struct meg_watchdog *w)
{
    return w->nsteps < 2 && w->timeout_s < STARTUP_TIMEOUT_S ? STARTUP_TIMEOUT_S : w->timeout_s;
}

void meg_watchdog_task_begin(struct meg_watchdog *w, const char *task)
{
    if (!w)
        return;
    pthread_mutex_lock(&w->lock);
    snprintf(w->state.task, sizeof w->state.task, "%s", task);
    w->state.task_s = 0;
    pthread_mutex_unlock(&w->lock);
}

void meg_watchdog_task_end(struct meg_watchdog *w)
{
    meg_watchdog_task_begin(w, "");
}

bool meg_watchdog_task_is_running(struct meg_watchdog *w)
{
    bool is_running;

    if (!w)
        return false;
    pthread_mutex_lock(&w->lock);
    is_running = w->state.run_has_task;
    pthread_mutex_unlock(&w->lock);
    return is_running;
}

bool meg_watchdog_extends_timeout(struct meg_watchdog *w, double waited_s)
{
    bool is_extended;

    if (!w)
        return false;
    pthread_mutex_lock(&w->lock);
    is_extended = w->is_open && waited_s <= watchdog_timeout_s(w);
    pthread_mutex_unlock(&w->lock);
    return is_extended;
}

void meg_watchdog_wait_begin(struct meg_watchdog *w, const char *op, const char *group, int64_t op_number)
{
    if (!w)
        return;
    pthread_mutex_lock(&w->lock);
    snprintf(w->state.op, sizeof w->state.op, "%s", op);
    snprintf(w->state.group, sizeof w->state.group, "%s", group);
    w->state.op_number = op_number;
    w->state.is_waiting = 1;
    w->nwaits++;
    pthread_mutex_unlock(&w->lock);
}

void meg_watchdog_wait_end(struct meg_watchdog *w)
{
    if (!w)
        return;
    pthread_mutex_lock(&w->lock);
    w->state.is_waiting = 0;
    pthread_mutex_unlock(&w->lock);
}

void meg_watchdog_await_report(struct meg_watchdog *w)
{
    const double start = meg_now_s();

    while (w && w->is_open && meg_now_s() - start < REPORT_WAIT_S)
        usleep(10000);
}

void meg_watchdog_broadcast_exit(struct meg_watchdog *w, int status, const char *reason)
{
    struct timespec until;

    if (!w || !w->is_open)
        return;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 1;
    pthread_mutex_lock(&w->lock);
    w->exit.status = status;
    w->exit.is_abort = 1;
    snprintf(w->exit.reason, sizeof w->exit.reason, "%s", reason);
    w->is_exiting = true;
    watchdog_wake(w);
    while (!w->has_sent_exit && pthread_cond_timedwait(&w->exit_sent_cond, &w->lock, &until) == 0)
        ;
    pthread_mutex_unlock(&w->lock);
    watchdog_abort(w);
}
