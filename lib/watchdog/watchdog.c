/* The main thread's side of the board: opening, closing, and what the thread is told. */
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
#include "base/hash.h"
#include "base/log.h"
#include "watchdog/internal.h"
#include "file/temporary.h"

enum { MAX_PENDING = 64 };     /* connections of which it is not known yet who they are */
#define STARTUP_TIMEOUT_S 60.0 /* that a wait may take at least before the first step is done */
#define HEARTBEAT_S 0.1        /* between two heartbeats of a small job */
#define WELCOME_S 10.0
#define REPORT_WAIT_S 8.0 /* in which the board has surely spoken */

void watchdog_wake(void)
{
    const int before = errno;

    if (write(watchdog.poke[1], "", 1) < 0)
        errno = before; /* the pipe is full: it will wake all the same */
}

static void terminated(int sig)
{
    (void)sig;
    watchdog.was_terminated = 1;
    watchdog_wake();
}

/* SIGTERM, which launchers send to the survivors of a lost rank, leaves the time to say who is lost. */
static void delay_sigterm(void)
{
    struct sigaction a;

    sigaction(SIGTERM, NULL, &a);
    if (a.sa_handler != SIG_DFL)
        return;
    memset(&a, 0, sizeof a);
    a.sa_handler = terminated;
    a.sa_flags = SA_RESTART;
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

/* Whether all ranks run under one kernel and in one network, so that loopback reaches them. */
static bool all_share_loopback(struct meg_comm *world)
{
    char id[256];
    size_t n = read_text("/proc/sys/kernel/random/boot_id", id, sizeof id / 2);
    const ssize_t m = readlink("/proc/self/ns/net", id + n, sizeof id - n);
    int64_t both[2];

    both[0] = (int64_t)meg_xxh3_64(id, n + (m > 0 ? (size_t)m : 0));
    both[1] = ~both[0];
    meg_all_reduce(world, both, 2, MEG_DTYPE_I64, MEG_REDUCE_MAX);
    return n && m > 0 && both[0] == ~both[1];
}

static void raise_fd_limit(void)
{
    struct rlimit l;

    if (getrlimit(RLIMIT_NOFILE, &l) < 0 || l.rlim_cur >= (rlim_t)watchdog.nlinks + MAX_PENDING)
        return;
    l.rlim_cur = l.rlim_max;
    setrlimit(RLIMIT_NOFILE, &l);
}

static void make_links(int n)
{
    watchdog.nlinks = n;
    watchdog.link = meg_new((size_t)n * sizeof *watchdog.link);
    for (int i = 0; i < n; i++)
        watchdog.link[i].fd = watchdog.link[i].rank = -1;
}

static bool start_thread(void)
{
    sigset_t all, before;
    int failed;

    if (pipe2(watchdog.poke, O_CLOEXEC | O_NONBLOCK) < 0 || (watchdog.epoll = epoll_create1(EPOLL_CLOEXEC)) < 0 ||
        !watchdog_epoll_add(watchdog.poke[0], &watchdog.poke))
        return false;
    if (watchdog_is_server() ? !watchdog_epoll_add(watchdog.listening, &watchdog.listening)
                             : !watchdog_epoll_add(watchdog.link[0].fd, &watchdog.link[0]))
        return false;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    failed = pthread_create(&watchdog.thread, NULL, watchdog_monitor, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = failed;
    watchdog.is_open = !failed;
    return watchdog.is_open;
}

bool watchdog_serve(bool is_local, int port)
{
    make_links(watchdog.size - 1 + MAX_PENDING);
    raise_fd_limit();
    watchdog.listening = watchdog_listen(&watchdog.invite, is_local, port);
    if (watchdog.meeting)
        memcpy(watchdog.invite.token, watchdog.meeting->token, sizeof watchdog.invite.token);
    memcpy(watchdog.invite.host, watchdog.host, sizeof watchdog.invite.host);
    return watchdog.listening >= 0 && start_thread();
}

/* Rank 0 has refused this process, and says why. */
static void exit_refused(const void *payload) MEG_NORETURN;
static void exit_refused(const void *payload)
{
    struct watchdog_exit ends;
    char why[sizeof ends.why];

    memcpy(&ends, payload, sizeof ends);
    watchdog_copy_name(why, ends.why, sizeof why);
    meg_warn("port %d refuses rank %d of %d on %s: %s", watchdog.invite.port, watchdog.rank, watchdog.size,
             watchdog.host, why);
    meg_temporary_exit(ends.status);
}

enum answer {
    ANSWER_WELCOME,
    ANSWER_NONE,   /* nobody listens, or the connection was closed: another try may succeed */
    ANSWER_STRANGE /* this is no board of ours */
};

/* Connect to rank 0's board and ask to join; errno says why there is no welcome. */
static enum answer ask_to_join(struct watchdog_conn *l)
{
    struct watchdog_join_request j = { .rank = watchdog.rank, .size = watchdog.size };
    struct pollfd p = { .events = POLLIN };
    enum watchdog_frame_type kind;
    const void *payload;
    int r = 0;

    watchdog_close_fd(&l->fd);
    l->have = l->taken = 0;
    if ((l->fd = p.fd = watchdog_connect(&watchdog.invite)) < 0)
        return ANSWER_NONE;
    memcpy(j.token, watchdog.invite.token, sizeof j.token);
    memcpy(j.host, watchdog.host, sizeof j.host);
    watchdog_send(l, WATCHDOG_JOIN, &j, sizeof j);
    while (r == 0 && poll(&p, 1, (int)(WELCOME_S * 1000)) > 0)
        r = watchdog_recv(l, &kind, &payload);
    if (r == 1 && kind == WATCHDOG_EXIT_ALL)
        exit_refused(payload);
    if (r == 1 && kind == WATCHDOG_WELCOME) {
        watchdog_copy_name(l->host, payload, sizeof l->host);
        return ANSWER_WELCOME;
    }
    errno = ECONNREFUSED;
    return r < 0 && l->have == 0 ? ANSWER_NONE : ANSWER_STRANGE;
}

/* A connection that got no welcome stays open, so that leaving can say goodbye on it. */
bool watchdog_join(double patience_s)
{
    const double start = meg_now_s();
    enum answer answer;

    make_links(1);
    if (!watchdog.invite.is_open)
        return false;
    while ((answer = ask_to_join(&watchdog.link[0])) == ANSWER_NONE && meg_now_s() - start <= patience_s)
        usleep(20000);
    if (answer != ANSWER_WELCOME)
        return false;
    watchdog.link[0].rank = 0;
    return start_thread();
}

/* The thread says goodbye; where there is none, this does, and rank 0 takes nobody for lost. */
static void leave(void)
{
    for (int i = 0; i < watchdog.nlinks && !watchdog.is_open; i++)
        watchdog_send(&watchdog.link[i], WATCHDOG_BYE, NULL, 0);
    if (watchdog.is_open) {
        pthread_mutex_lock(&watchdog.lock);
        watchdog.is_leaving = true;
        pthread_mutex_unlock(&watchdog.lock);
        watchdog_wake();
        pthread_join(watchdog.thread, NULL);
        watchdog.is_open = false;
    }
    for (int i = 0; i < watchdog.nlinks; i++)
        watchdog_close_fd(&watchdog.link[i].fd);
    watchdog.nlinks = 0;
    free(watchdog.link);
    watchdog.link = NULL;
    free(watchdog.has_come);
    watchdog.has_come = NULL;
    watchdog_kv_clear();
    watchdog_close_fd(&watchdog.listening);
    watchdog_close_fd(&watchdog.epoll);
    watchdog_close_fd(&watchdog.poke[0]);
    watchdog_close_fd(&watchdog.poke[1]);
}

/* Where a rank could not join, nobody has a board; that rank is in no barrier with those that have one still. */
static void close_unless_all_joined(bool is_in, int why)
{
    int32_t failed = is_in ? 0 : watchdog.size - watchdog.rank;

    meg_all_reduce(watchdog.world, &failed, 1, MEG_DTYPE_I32, MEG_REDUCE_MAX);
    if (failed && failed == watchdog.size - watchdog.rank)
        meg_warn("rank %d on %s cannot %s the board of rank 0 on %s: %s; a lost rank is noticed only when others "
                 "have waited for it too long",
                 watchdog.rank, watchdog.host, watchdog_is_server() ? "open" : "join", watchdog.invite.host,
                 strerror(why));
    if (failed)
        leave();
}

/* Over the world's communicator. */
static void open_over_world(void)
{
    const bool is_local = all_share_loopback(watchdog.world);
    bool is_in = false;
    int why;

    if (watchdog_is_server())
        is_in = watchdog_serve(is_local, 0);
    why = errno;
    meg_broadcast(watchdog.world, &watchdog.invite, sizeof watchdog.invite / sizeof(int32_t), MEG_DTYPE_I32, 0);
    if (!watchdog_is_server()) {
        is_in = watchdog_join(0);
        why = errno;
    }
    close_unless_all_joined(is_in, why);
}

void meg_watchdog_set_rendezvous(const struct meg_rendezvous *m)
{
    watchdog.meeting = m;
}

void meg_watchdog_open(struct meg_comm *world, double deadline_s)
{
    const double beat_s = HEARTBEAT_S * (1 + world->size / 1000); /* rank 0 hears some thousand a second */

    if (world->size == 1)
        return;
    watchdog.world = world;
    watchdog.rank = world->rank;
    watchdog.size = world->size;
    watchdog.deadline_s = deadline_s;
    watchdog.beat_s = beat_s < deadline_s / 8 ? beat_s : deadline_s / 8;
    watchdog.place.step = -1;
    watchdog.has_come = meg_new((size_t)world->size * sizeof *watchdog.has_come);
    watchdog.has_come[0] = true;
    watchdog.ncome = 1;
    gethostname(watchdog.host, sizeof watchdog.host - 1);
    if (watchdog.meeting)
        watchdog_rendezvous(watchdog.meeting);
    else
        open_over_world();
    if (watchdog.is_open)
        delay_sigterm();
}

void meg_watchdog_close(void)
{
    if (watchdog.is_open)
        meg_barrier(watchdog.world);
    leave();
}

void meg_watchdog_set_step(int64_t step)
{
    pthread_mutex_lock(&watchdog.lock);
    watchdog.place.step = step;
    watchdog.steps++;
    pthread_mutex_unlock(&watchdog.lock);
}

double watchdog_timeout_s(void)
{
    return watchdog.steps < 2 && watchdog.deadline_s < STARTUP_TIMEOUT_S ? STARTUP_TIMEOUT_S : watchdog.deadline_s;
}

bool meg_watchdog_extends_timeout(double waited_s)
{
    bool is_patient;

    pthread_mutex_lock(&watchdog.lock);
    is_patient = watchdog.is_open && waited_s <= watchdog_timeout_s();
    pthread_mutex_unlock(&watchdog.lock);
    return is_patient;
}

void meg_watchdog_wait_begin(const char *what, const char *group, int64_t number)
{
    pthread_mutex_lock(&watchdog.lock);
    snprintf(watchdog.place.what, sizeof watchdog.place.what, "%s", what);
    snprintf(watchdog.place.group, sizeof watchdog.place.group, "%s", group);
    watchdog.place.number = number;
    watchdog.place.is_waiting = 1;
    watchdog.wait++;
    pthread_mutex_unlock(&watchdog.lock);
}

void meg_watchdog_wait_end(void)
{
    pthread_mutex_lock(&watchdog.lock);
    watchdog.place.is_waiting = 0;
    pthread_mutex_unlock(&watchdog.lock);
}

void meg_watchdog_await_report(void)
{
    const double start = meg_now_s();

    while (watchdog.is_open && meg_now_s() - start < REPORT_WAIT_S)
        usleep(10000);
}

void meg_watchdog_broadcast_exit(int status, const char *why)
{
    struct timespec until;

    if (!watchdog.is_open)
        return;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 1;
    pthread_mutex_lock(&watchdog.lock);
    watchdog.ends.status = status;
    watchdog.ends.is_abort = 1;
    snprintf(watchdog.ends.why, sizeof watchdog.ends.why, "%s", why);
    watchdog.is_ending = true;
    watchdog_wake();
    while (!watchdog.has_told && pthread_cond_timedwait(&watchdog.told, &watchdog.lock, &until) == 0)
        ;
    pthread_mutex_unlock(&watchdog.lock);
}
