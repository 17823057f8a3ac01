/* The main thread's side of the board: opening, closing, and what the thread is told. */
#define _GNU_SOURCE
#include "comm/board.h"
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
#include "comm/board_internal.h"
#include "file/temporary.h"

enum { STRANGERS = 64 };             /* connections of which it is not known yet who they are */
#define SETUP_S   60.0               /* that a wait may take at least before the first step is done */
#define BEAT_S    0.1                /* between two heartbeats of a small job */
#define WELCOME_S 10.0
#define VERDICT_S 8.0                /* in which the board has surely spoken */

void board_poke(void)
{
    const int before = errno;

    if (write(board.poke[1], "", 1) < 0)
        errno = before;              /* the pipe is full: it will wake all the same */
}

static void terminated(int sig)
{
    (void)sig;
    board.was_terminated = 1;
    board_poke();
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
static bool share_a_network(struct meg_comm *world)
{
    char id[256];
    size_t n = read_text("/proc/sys/kernel/random/boot_id", id, sizeof id / 2);
    const ssize_t m = readlink("/proc/self/ns/net", id + n, sizeof id - n);
    int64_t both[2];

    both[0] = (int64_t)meg_xxh3_64(id, n + (m > 0 ? (size_t)m : 0));
    both[1] = ~both[0];
    meg_all_reduce(world, both, 2, MEG_DTYPE_I64, MEG_MAX);
    return n && m > 0 && both[0] == ~both[1];
}

static void room_for_sockets(void)
{
    struct rlimit l;

    if (getrlimit(RLIMIT_NOFILE, &l) < 0 || l.rlim_cur >= (rlim_t)board.nlinks + STRANGERS)
        return;
    l.rlim_cur = l.rlim_max;
    setrlimit(RLIMIT_NOFILE, &l);
}

static void make_links(int n)
{
    board.nlinks = n;
    board.link = meg_new((size_t)n * sizeof *board.link);
    for (int i = 0; i < n; i++)
        board.link[i].fd = board.link[i].rank = -1;
}

static bool start_thread(void)
{
    sigset_t all, before;
    int failed;

    if (pipe2(board.poke, O_CLOEXEC | O_NONBLOCK) < 0 || (board.epoll = epoll_create1(EPOLL_CLOEXEC)) < 0 ||
        !board_listen_to(board.poke[0], &board.poke))
        return false;
    if (board_is_host() ? !board_listen_to(board.listening, &board.listening)
                        : !board_listen_to(board.link[0].fd, &board.link[0]))
        return false;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    failed = pthread_create(&board.thread, NULL, board_watch, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = failed;
    board.is_open = !failed;
    return board.is_open;
}

bool board_serve(bool is_local, int port)
{
    make_links(board.size - 1 + STRANGERS);
    room_for_sockets();
    board.listening = board_listen(&board.invite, is_local, port);
    if (board.meeting)
        memcpy(board.invite.token, board.meeting->token, sizeof board.invite.token);
    memcpy(board.invite.host, board.host, sizeof board.invite.host);
    return board.listening >= 0 && start_thread();
}

/* Rank 0 has refused this process, and says why. */
static void turned_away(const void *payload) MEG_NORETURN;
static void turned_away(const void *payload)
{
    struct board_ends ends;
    char why[sizeof ends.why];

    memcpy(&ends, payload, sizeof ends);
    board_copy_name(why, ends.why, sizeof why);
    meg_warn("port %d refuses rank %d of %d on %s: %s", board.invite.port, board.rank, board.size, board.host, why);
    meg_temporary_exit(ends.status);
}

enum answer {
    ANSWER_WELCOME,
    ANSWER_NONE,                     /* nobody listens, or the connection was closed: another try may succeed */
    ANSWER_STRANGE                   /* this is no board of ours */
};

/* Connect to rank 0's board and ask to join; errno says why there is no welcome. */
static enum answer ask_to_join(struct board_link *l)
{
    struct board_join j = { .rank = board.rank, .size = board.size };
    struct pollfd p = { .events = POLLIN };
    enum board_kind kind;
    const void *payload;
    int r = 0;

    board_shut(&l->fd);
    l->have = l->taken = 0;
    if ((l->fd = p.fd = board_connect(&board.invite)) < 0)
        return ANSWER_NONE;
    memcpy(j.token, board.invite.token, sizeof j.token);
    memcpy(j.host, board.host, sizeof j.host);
    board_send(l, BOARD_JOIN, &j, sizeof j);
    while (r == 0 && poll(&p, 1, (int)(WELCOME_S * 1000)) > 0)
        r = board_recv(l, &kind, &payload);
    if (r == 1 && kind == BOARD_END)
        turned_away(payload);
    if (r == 1 && kind == BOARD_WELCOME) {
        board_copy_name(l->host, payload, sizeof l->host);
        return ANSWER_WELCOME;
    }
    errno = ECONNREFUSED;
    return r < 0 && l->have == 0 ? ANSWER_NONE : ANSWER_STRANGE;
}

/* A connection that got no welcome stays open, so that leaving can say goodbye on it. */
bool board_go_to(double patience_s)
{
    const double start = meg_now_s();
    enum answer answer;

    make_links(1);
    if (!board.invite.is_open)
        return false;
    while ((answer = ask_to_join(&board.link[0])) == ANSWER_NONE && meg_now_s() - start <= patience_s)
        usleep(20000);
    if (answer != ANSWER_WELCOME)
        return false;
    board.link[0].rank = 0;
    return start_thread();
}

/* The thread says goodbye; where there is none, this does, and rank 0 takes nobody for lost. */
static void leave(void)
{
    for (int i = 0; i < board.nlinks && !board.is_open; i++)
        board_send(&board.link[i], BOARD_BYE, NULL, 0);
    if (board.is_open) {
        pthread_mutex_lock(&board.lock);
        board.is_leaving = true;
        pthread_mutex_unlock(&board.lock);
        board_poke();
        pthread_join(board.thread, NULL);
        board.is_open = false;
    }
    for (int i = 0; i < board.nlinks; i++)
        board_shut(&board.link[i].fd);
    board.nlinks = 0;
    free(board.link);
    board.link = NULL;
    free(board.has_come);
    board.has_come = NULL;
    board_forget_notes();
    board_shut(&board.listening);
    board_shut(&board.epoll);
    board_shut(&board.poke[0]);
    board_shut(&board.poke[1]);
}

/* Where a rank could not join, nobody has a board; that rank is in no barrier with those that have one still. */
static void all_or_none(bool is_in, int why)
{
    int32_t failed = is_in ? 0 : board.size - board.rank;

    meg_all_reduce(board.world, &failed, 1, MEG_DTYPE_I32, MEG_MAX);
    if (failed && failed == board.size - board.rank)
        meg_warn("rank %d on %s cannot %s the board of rank 0 on %s: %s; a lost rank is noticed only when others "
                 "have waited for it too long",
                 board.rank, board.host, board_is_host() ? "open" : "join", board.invite.host, strerror(why));
    if (failed)
        leave();
}

/* Over the world's communicator. */
static void join_by_invitation(void)
{
    const bool is_local = share_a_network(board.world);
    bool is_in = false;
    int why;

    if (board_is_host())
        is_in = board_serve(is_local, 0);
    why = errno;
    meg_broadcast(board.world, &board.invite, sizeof board.invite / sizeof(int32_t), MEG_DTYPE_I32, 0);
    if (!board_is_host()) {
        is_in = board_go_to(0);
        why = errno;
    }
    all_or_none(is_in, why);
}

void meg_board_meet_at(const struct meg_meeting *m)
{
    board.meeting = m;
}

void meg_board_open(struct meg_comm *world, double deadline_s)
{
    const double beat_s = BEAT_S * (1 + world->size / 1000); /* rank 0 hears some thousand a second */

    if (world->size == 1)
        return;
    board.world = world;
    board.rank = world->rank;
    board.size = world->size;
    board.deadline_s = deadline_s;
    board.beat_s = beat_s < deadline_s / 8 ? beat_s : deadline_s / 8;
    board.place.step = -1;
    board.has_come = meg_new((size_t)world->size * sizeof *board.has_come);
    board.has_come[0] = true;
    board.ncome = 1;
    gethostname(board.host, sizeof board.host - 1);
    if (board.meeting)
        board_meet(board.meeting);
    else
        join_by_invitation();
    if (board.is_open)
        delay_sigterm();
}

void meg_board_close(void)
{
    if (board.is_open)
        meg_barrier(board.world);
    leave();
}

void meg_board_step(int64_t step)
{
    pthread_mutex_lock(&board.lock);
    board.place.step = step;
    board.steps++;
    pthread_mutex_unlock(&board.lock);
}

double board_patience_s(void)
{
    return board.steps < 2 && board.deadline_s < SETUP_S ? SETUP_S : board.deadline_s;
}

bool meg_board_is_patient(double waited_s)
{
    bool is_patient;

    pthread_mutex_lock(&board.lock);
    is_patient = board.is_open && waited_s <= board_patience_s();
    pthread_mutex_unlock(&board.lock);
    return is_patient;
}

void meg_board_enter(const char *what, const char *group, int64_t number)
{
    pthread_mutex_lock(&board.lock);
    snprintf(board.place.what, sizeof board.place.what, "%s", what);
    snprintf(board.place.group, sizeof board.place.group, "%s", group);
    board.place.number = number;
    board.place.is_waiting = 1;
    board.wait++;
    pthread_mutex_unlock(&board.lock);
}

void meg_board_leave(void)
{
    pthread_mutex_lock(&board.lock);
    board.place.is_waiting = 0;
    pthread_mutex_unlock(&board.lock);
}

void meg_board_give_up(void)
{
    const double start = meg_now_s();

    while (board.is_open && meg_now_s() - start < VERDICT_S)
        usleep(10000);
}

void meg_board_last_words(int status, const char *why)
{
    struct timespec until;

    if (!board.is_open)
        return;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 1;
    pthread_mutex_lock(&board.lock);
    board.ends.status = status;
    board.ends.is_abort = 1;
    snprintf(board.ends.why, sizeof board.ends.why, "%s", why);
    board.is_ending = true;
    board_poke();
    while (!board.has_told && pthread_cond_timedwait(&board.told, &board.lock, &until) == 0)
        ;
    pthread_mutex_unlock(&board.lock);
}
