/*
 * Rank 0's thread and the others' are the same loop over links: rank 0 has one to every rank, the others
 * one to rank 0.  Only who decides differs: rank 0 does at once, the others when it can not.
 */
#define _GNU_SOURCE
#include "comm/board.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
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

enum { STRANGERS = 64, DEPUTIES = 3 };
#define BEAT_S   0.1                 /* between two heartbeats of a small job */
#define JOIN_S   10.0                /* for a connection to say who it is */
#define ANSWER_S 1.0                 /* for a rank to say where it is, and for rank 0 to decide */
#define TERM_S   0.3                 /* between SIGTERM and obeying it */
#define PAUSE_S  5.0                 /* in which our own stop explains what others do */
#define VERDICT_S 8.0                /* in which the board has surely spoken */

enum verdict { NONE, GONE, LATE, TERMINATED };

static struct {
    /* set once */
    int rank, size, listening, epoll, poke[2];
    double deadline_s, beat_s;
    char host[64];
    struct board_invite invite;
    struct meg_comm *world;
    bool is_open;
    pthread_t thread;

    /* between the threads */
    pthread_mutex_t lock;
    pthread_cond_t told;
    struct board_place place;
    int64_t wait;                    /* how many there have been */
    struct board_ends ends;
    bool is_ending, has_told, is_leaving;

    /* the thread's own */
    struct board_link *link;
    int nlinks;
    double since_beat_s, waited_s, paused_s, since_pause_s;
    int64_t wait_seen;
    enum verdict verdict;            /* that is due in left_s */
    const struct board_link *lost;
    bool must_end;                   /* a late verdict: also when everybody answers */
    double left_s;
} b = { .lock = PTHREAD_MUTEX_INITIALIZER, .told = PTHREAD_COND_INITIALIZER };

static volatile sig_atomic_t was_terminated;

static bool is_host(void)
{
    return b.rank == 0;
}

static bool is_peer(const struct board_link *l)
{
    return l->fd >= 0 && l->rank >= 0 && !l->has_left;
}

static struct board_place place_now(void)
{
    struct board_place p;

    pthread_mutex_lock(&b.lock);
    p = b.place;
    pthread_mutex_unlock(&b.lock);
    return p;
}

/* ---- the end ------------------------------------------------------------------------------------ */

static void say(const char *text)
{
    struct meg_str s = { 0 };

    meg_str_printf(&s, "%s%s", isatty(STDERR_FILENO) ? "\r\033[K" : "", meg_progname());
    if (b.rank)
        meg_str_printf(&s, "[%d]", b.rank);
    meg_str_printf(&s, ": %s\n", text);
    if (write(STDERR_FILENO, s.s, s.n) < 0)
        return;                      /* there is no one left to tell */
    meg_str_free(&s);
}

static void tell_all(enum board_kind kind, const void *payload, size_t n)
{
    for (int i = 0; i < b.nlinks; i++)
        if (is_peer(&b.link[i]))
            board_send(&b.link[i], kind, payload, n);
}

/* Rank 0 ends the others, too; the message is out before. */
static void end_all(int status) MEG_NORETURN;
static void end_all(int status)
{
    struct board_ends end = { .status = status };

    if (is_host())
        tell_all(BOARD_END, &end, sizeof end);
    _exit(status);
}

static void decide(void) MEG_NORETURN;
static void decide(void)
{
    struct board_view v = { b.size, b.rank, place_now(), b.host, b.link, b.nlinks, b.deadline_s };
    struct meg_str s = { 0 };

    if (b.rank > DEPUTIES)
        _exit(meg_exit_status(MEG_EPEER));
    if (b.paused_s > b.deadline_s)
        meg_str_printf(&s, "rank %d of %d on %s was itself stopped for %.1f s, longer than the others wait", b.rank,
                       b.size, b.host, b.paused_s);
    else if (b.verdict == GONE)
        board_say_gone(&s, &v, b.lost);
    else
        board_say_late(&s, &v);
    say(s.s);
    end_all(meg_exit_status(MEG_EPEER));
}

/* Obey SIGTERM: nobody is lost.  Rank 0 says so for all, be it asked itself or told. */
static void obey(void) MEG_NORETURN;
static void obey(void)
{
    struct board_ends ends = { 128 + SIGTERM, "it was ended by SIGTERM" };

    if (is_host()) {
        say("ended by SIGTERM");
        tell_all(BOARD_END, &ends, sizeof ends);
    } else {
        tell_all(BOARD_ENDS, &ends, sizeof ends);
    }
    signal(SIGTERM, SIG_DFL);
    kill(getpid(), SIGTERM);
    for (;;)
        pause();
}

/* Rank 0's decision is due now; another rank's when rank 0 had its chance, one rank after the other. */
static void expect(enum verdict v, double host_s, double other_s)
{
    const int turn = b.rank < DEPUTIES ? b.rank : DEPUTIES;

    b.verdict = v;
    b.left_s = is_host() ? host_s : other_s + (turn - 1);
}

/* Whatever else was the matter follows from it. */
static void lost(const struct board_link *l)
{
    if (b.verdict == GONE)
        return;
    b.lost = l;
    expect(GONE, 0, 0);
}

static void late(bool must_end)
{
    b.must_end |= must_end;
    if (b.verdict != NONE)
        return;
    for (int i = 0; i < b.nlinks; i++)
        b.link[i].has_answered = false;
    expect(LATE, ANSWER_S, 2 * ANSWER_S);
    tell_all(is_host() ? BOARD_ASK : BOARD_WAITED, NULL, 0);
}

static bool all_answered(void)
{
    for (int i = 0; i < b.nlinks; i++)
        if (is_peer(&b.link[i]) && !b.link[i].has_answered)
            return false;
    return true;
}

static void judge(double passed)
{
    if (b.verdict == NONE)
        return;
    b.left_s -= passed;
    if (b.verdict == LATE && all_answered()) {
        if (!b.must_end)
            b.verdict = NONE;        /* they were only slow to be heard */
        else if (is_host())
            decide();
        else if (b.left_s <= 0)
            b.left_s = ANSWER_S;     /* rank 0 lives: it is its to decide */
    }
    if (b.verdict == NONE || b.left_s > 0)
        return;
    if (b.verdict == TERMINATED)
        obey();
    decide();
}

/* ---- frames ------------------------------------------------------------------------------------- */

static void drop(struct board_link *l)
{
    close(l->fd);
    memset(l, 0, sizeof *l);
    l->fd = l->rank = -1;
}

static bool is_taken(int rank)
{
    for (int i = 0; i < b.nlinks; i++)
        if (b.link[i].rank == rank)
            return true;
    return false;
}

static bool join(struct board_link *l, const struct board_join *j)
{
    unsigned char differs = 0;

    for (size_t i = 0; i < sizeof j->token; i++)
        differs |= j->token[i] ^ b.invite.token[i];
    if (differs || !is_host() || l->rank >= 0 || j->rank < 1 || j->rank >= b.size || is_taken(j->rank))
        return false;
    l->rank = j->rank;
    memcpy(l->host, j->host, sizeof l->host - 1);
    board_send(l, BOARD_WELCOME, NULL, 0);
    return true;
}

/* Its own message stands in its own output; of SIGTERM it has none. */
static void heard_end(const struct board_link *l, const struct board_ends *ends)
{
    struct meg_str s = { 0 };

    meg_str_printf(&s, "rank %d of %d on %s ended the run: %.*s", l->rank, b.size, l->host,
                   (int)sizeof ends->why - 1, ends->why);
    if (ends->status != 128 + SIGTERM)
        meg_note("%s", s.s);
    else if (!was_terminated)
        say(s.s);
    meg_str_free(&s);
}

/* False: this frame has no place here. */
static bool take(struct board_link *l, enum board_kind kind, const void *payload)
{
    struct board_join j;
    struct board_ends ends;
    struct board_place here;

    if (l->rank < 0 && kind != BOARD_JOIN)
        return false;
    l->silent_s = 0;
    switch (kind) {
    case BOARD_JOIN: memcpy(&j, payload, sizeof j); return join(l, &j);
    case BOARD_WELCOME: return true;
    case BOARD_PLACE:
        memcpy(&l->place, payload, sizeof l->place);
        l->has_answered = true;
        return true;
    case BOARD_ASK:
        here = place_now();
        board_send(l, BOARD_PLACE, &here, sizeof here);
        return true;
    case BOARD_WAITED: late(true); return true;
    case BOARD_ENDS:
        memcpy(&ends, payload, sizeof ends);
        heard_end(l, &ends);
        end_all(ends.status);
    case BOARD_END: memcpy(&ends, payload, sizeof ends); end_all(ends.status);
    case BOARD_BYE: l->has_left = true; return true;
    }
    return false;
}

static void hear(struct board_link *l)
{
    enum board_kind kind;
    const void *payload;
    int r = 0;

    while (l->fd >= 0 && (r = board_recv(l, &kind, &payload)) == 1 && take(l, kind, payload))
        ;
    if (r == 0)
        return;
    if (r < 0 && is_peer(l)) {
        lost(l);
        epoll_ctl(b.epoll, EPOLL_CTL_DEL, l->fd, NULL);
    } else if (l->fd >= 0) {
        drop(l);
    }
}

/* Events of fd come with who: a link, or the address of what else it is. */
static bool listen_to(int fd, void *who)
{
    struct epoll_event e = { .events = EPOLLIN, .data.ptr = who };

    return epoll_ctl(b.epoll, EPOLL_CTL_ADD, fd, &e) == 0;
}

static void let_in(void)
{
    int fd;

    while ((fd = board_accept(b.listening)) >= 0) {
        int i = 0;

        while (i < b.nlinks && b.link[i].fd >= 0)
            i++;
        if (i < b.nlinks && listen_to(fd, &b.link[i]))
            b.link[i].fd = fd;
        else
            close(fd);
    }
}

/* ---- the thread --------------------------------------------------------------------------------- */

/* What the main thread or the signal handler woke us for; false: the end of the thread. */
static bool look_around(void)
{
    char bytes[64];

    while (read(b.poke[0], bytes, sizeof bytes) > 0)
        ;
    if (was_terminated && b.verdict == NONE) {
        b.verdict = TERMINATED;
        b.left_s = TERM_S;
    }
    pthread_mutex_lock(&b.lock);
    if (b.is_ending && !b.has_told) {
        tell_all(is_host() ? BOARD_END : BOARD_ENDS, &b.ends, sizeof b.ends);
        b.has_told = true;
        pthread_cond_broadcast(&b.told);
    }
    if (b.is_leaving)
        tell_all(BOARD_BYE, NULL, 0);
    pthread_mutex_unlock(&b.lock);
    return !b.is_leaving && !b.is_ending;
}

static void watch_silence(double passed)
{
    for (int i = 0; i < b.nlinks; i++) {
        struct board_link *l = &b.link[i];

        l->silent_s += passed;
        if (is_peer(l) && l->silent_s > b.deadline_s)
            late(false);
        else if (l->fd >= 0 && l->rank < 0 && l->silent_s > JOIN_S)
            drop(l);
    }
}

static void watch_wait(double passed)
{
    bool is_same;

    pthread_mutex_lock(&b.lock);
    is_same = b.place.is_waiting && b.wait == b.wait_seen;
    b.wait_seen = b.wait;
    pthread_mutex_unlock(&b.lock);
    b.waited_s = is_same ? b.waited_s + passed : 0;
    if (b.waited_s > b.deadline_s)
        late(true);
}

/* Time that went by while we were stopped is nobody's; that it did is remembered for a while. */
static double forgiven(double gap, double tick_s)
{
    if (gap > tick_s + 1) {
        b.paused_s = gap;
        b.since_pause_s = 0;
        return tick_s;
    }
    b.since_pause_s += gap;
    if (b.since_pause_s > PAUSE_S)
        b.paused_s = 0;
    return gap;
}

static void tick(double passed)
{
    b.since_beat_s += passed;
    if (b.since_beat_s >= b.beat_s) {
        struct board_place here = place_now();

        tell_all(BOARD_PLACE, &here, sizeof here);
        b.since_beat_s = 0;
    }
    watch_silence(passed);
    watch_wait(passed);
    judge(passed);
}

static void *watch(void *arg)
{
    const double tick_s = b.beat_s < 0.25 ? b.beat_s : 0.25;
    double before = meg_now_s();

    (void)arg;
    for (;;) {
        struct epoll_event event[64];
        const int n = epoll_wait(b.epoll, event, 64, (int)(tick_s * 1000));
        const double now = meg_now_s();
        const double passed = forgiven(now - before, tick_s);
        bool is_poked = false;

        before = now;
        for (int i = 0; i < n; i++) {
            if (event[i].data.ptr == &b.listening)
                let_in();
            else if (event[i].data.ptr == &b.poke)
                is_poked = true;
            else
                hear(event[i].data.ptr);
        }
        if (is_poked && !look_around())
            return NULL;
        tick(passed);
    }
}

/* ---- the main thread's side --------------------------------------------------------------------- */

static void poke(void)
{
    const int before = errno;

    if (write(b.poke[1], "", 1) < 0)
        errno = before;              /* the pipe is full: it will wake all the same */
}

static void terminated(int sig)
{
    (void)sig;
    was_terminated = 1;
    poke();
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

    if (getrlimit(RLIMIT_NOFILE, &l) < 0 || l.rlim_cur >= (rlim_t)b.nlinks + STRANGERS)
        return;
    l.rlim_cur = l.rlim_max;
    setrlimit(RLIMIT_NOFILE, &l);
}

static void make_links(int n)
{
    b.nlinks = n;
    b.link = meg_new((size_t)n * sizeof *b.link);
    for (int i = 0; i < n; i++)
        b.link[i].fd = b.link[i].rank = -1;
}

static bool start_thread(void)
{
    sigset_t all, before;
    int failed;

    if (pipe2(b.poke, O_CLOEXEC | O_NONBLOCK) < 0 || (b.epoll = epoll_create1(EPOLL_CLOEXEC)) < 0 ||
        !listen_to(b.poke[0], &b.poke))
        return false;
    if (is_host() ? !listen_to(b.listening, &b.listening) : !listen_to(b.link[0].fd, &b.link[0]))
        return false;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    failed = pthread_create(&b.thread, NULL, watch, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = failed;
    b.is_open = !failed;
    return b.is_open;
}

static bool serve(bool is_local)
{
    make_links(b.size - 1 + STRANGERS);
    room_for_sockets();
    b.listening = board_listen(&b.invite, is_local);
    memcpy(b.invite.host, b.host, sizeof b.invite.host);
    return b.listening >= 0 && start_thread();
}

/* Join rank 0's board, and be welcome there. */
static bool go_to(void)
{
    struct board_join j = { .rank = b.rank };
    struct pollfd p = { .events = POLLIN };
    enum board_kind kind;
    const void *payload;
    struct board_link *l;
    int r = 0;

    make_links(1);
    l = b.link;
    if (!b.invite.is_open || (l->fd = p.fd = board_connect(&b.invite)) < 0)
        return false;
    l->rank = 0;
    memcpy(l->host, b.invite.host, sizeof l->host);
    memcpy(j.token, b.invite.token, sizeof j.token);
    memcpy(j.host, b.host, sizeof j.host);
    board_send(l, BOARD_JOIN, &j, sizeof j);
    while (r == 0 && poll(&p, 1, (int)(JOIN_S * 1000)) > 0)
        r = board_recv(l, &kind, &payload);
    if (r == 1 && kind == BOARD_WELCOME)
        return start_thread();
    errno = ECONNREFUSED;
    return false;
}

/* Where a rank could not join, nobody has a board. */
static void all_or_none(bool is_in, int why)
{
    int32_t failed = is_in ? 0 : b.size - b.rank;

    meg_all_reduce(b.world, &failed, 1, MEG_DTYPE_I32, MEG_MAX);
    if (failed && failed == b.size - b.rank)
        meg_warn("rank %d on %s cannot %s the board of rank 0 on %s: %s; a lost rank is noticed only when others "
                 "have waited for it too long",
                 b.rank, b.host, is_host() ? "open" : "join", b.invite.host, strerror(why));
    if (failed)
        meg_board_close();
}

void meg_board_open(struct meg_comm *world, double deadline_s)
{
    const double beat_s = BEAT_S * (1 + world->size / 1000); /* rank 0 hears some thousand a second */
    bool is_in = false, is_local;
    int why;

    if (world->size == 1 || !(deadline_s > 0))
        return;                      /* who checks the options refuses the second */
    b.world = world;
    b.rank = world->rank;
    b.size = world->size;
    b.deadline_s = deadline_s;
    b.beat_s = beat_s < deadline_s / 8 ? beat_s : deadline_s / 8;
    b.place.step = -1;
    b.listening = b.epoll = b.poke[0] = b.poke[1] = -1;
    gethostname(b.host, sizeof b.host - 1);
    is_local = share_a_network(world);
    if (is_host())
        is_in = serve(is_local);
    why = errno;
    meg_broadcast(world, &b.invite, sizeof b.invite / sizeof(int32_t), MEG_DTYPE_I32, 0);
    if (!is_host()) {
        is_in = go_to();
        why = errno;
    }
    all_or_none(is_in, why);
    if (b.is_open)
        delay_sigterm();
}

static void shut(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

void meg_board_close(void)
{
    if (b.is_open) {
        meg_barrier(b.world);
        pthread_mutex_lock(&b.lock);
        b.is_leaving = true;
        pthread_mutex_unlock(&b.lock);
        poke();
        pthread_join(b.thread, NULL);
        b.is_open = false;
    }
    for (int i = 0; i < b.nlinks; i++)
        shut(&b.link[i].fd);
    b.nlinks = 0;
    free(b.link);
    b.link = NULL;
    shut(&b.listening);
    shut(&b.epoll);
    shut(&b.poke[0]);
    shut(&b.poke[1]);
}

void meg_board_step(int64_t step)
{
    pthread_mutex_lock(&b.lock);
    b.place.step = step;
    pthread_mutex_unlock(&b.lock);
}

void meg_board_enter(const char *what, const char *group, int64_t number)
{
    pthread_mutex_lock(&b.lock);
    snprintf(b.place.what, sizeof b.place.what, "%s", what);
    snprintf(b.place.group, sizeof b.place.group, "%s", group);
    b.place.number = number;
    b.place.is_waiting = 1;
    b.wait++;
    pthread_mutex_unlock(&b.lock);
}

void meg_board_leave(void)
{
    pthread_mutex_lock(&b.lock);
    b.place.is_waiting = 0;
    pthread_mutex_unlock(&b.lock);
}

void meg_board_give_up(void)
{
    const double start = meg_now_s();

    while (b.is_open && meg_now_s() - start < VERDICT_S)
        usleep(10000);
}

void meg_board_last_words(int status, const char *why)
{
    struct timespec until;

    if (!b.is_open)
        return;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 1;
    pthread_mutex_lock(&b.lock);
    b.ends.status = status;
    snprintf(b.ends.why, sizeof b.ends.why, "%s", why);
    b.is_ending = true;
    poke();
    while (!b.has_told && pthread_cond_timedwait(&b.told, &b.lock, &until) == 0)
        ;
    pthread_mutex_unlock(&b.lock);
}
