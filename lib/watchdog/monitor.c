/*
 * Rank 0's thread and the others' are the same loop over links: rank 0 has one to every rank, the others
 * one to rank 0.  Only who decides differs: rank 0 does at once, the others when it can not.
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
#include "watchdog/internal.h"
#include "file/temporary.h"

enum { FALLBACK_REPORTERS = 3 }; /* ranks after rank 0 that speak when it can not, one after the other */
#define JOIN_S 10.0              /* for a connection to say who it is */
#define ANSWER_S 1.0             /* for a rank to say where it is, and for rank 0 to decide */
#define ABORT_S 2.0              /* for a launcher to end us where a rank told it to */
#define TERM_S 0.3               /* between SIGTERM and obeying it */
#define PAUSE_S 5.0              /* in which our own stop explains what others do */

struct watchdog watchdog = { .lock = PTHREAD_MUTEX_INITIALIZER,
                             .told = PTHREAD_COND_INITIALIZER,
                             .listening = -1,
                             .epoll = -1,
                             .poke = { -1, -1 } };

static bool is_peer(const struct watchdog_conn *l)
{
    return l->fd >= 0 && l->rank >= 0 && !l->has_left;
}

static struct watchdog_rank_state place_now(void)
{
    struct watchdog_rank_state p;

    pthread_mutex_lock(&watchdog.lock);
    p = watchdog.place;
    pthread_mutex_unlock(&watchdog.lock);
    return p;
}

static double locked_patience_s(void)
{
    double s;

    pthread_mutex_lock(&watchdog.lock);
    s = watchdog_timeout_s();
    pthread_mutex_unlock(&watchdog.lock);
    return s;
}

/* ---- the end ------------------------------------------------------------------------------------ */

static void say(const char *text)
{
    struct meg_str s = { 0 };
    size_t start;

    meg_str_printf(&s, "%s", isatty(STDERR_FILENO) ? "\r\033[K" : "");
    start = s.n;
    meg_str_printf(&s, "%s", meg_progname());
    if (watchdog.rank)
        meg_str_printf(&s, "[%d]", watchdog.rank);
    meg_str_printf(&s, ": %s", text);
    meg_log_sanitize(s.s + start);
    meg_str_add(&s, "\n", 1);
    if (write(STDERR_FILENO, s.s, s.n) < 0)
        return; /* there is no one left to tell */
    meg_str_free(&s);
}

static void tell_all(enum watchdog_frame_type kind, const void *payload, size_t n)
{
    for (int i = 0; i < watchdog.nlinks; i++)
        if (is_peer(&watchdog.link[i]))
            watchdog_send(&watchdog.link[i], kind, payload, n);
}

/* Rank 0 ends the others, too; the message is out before. */
static void end_all(int status) MEG_NORETURN;
static void end_all(int status)
{
    struct watchdog_exit end = { .status = status };

    if (watchdog_is_server())
        tell_all(WATCHDOG_EXIT_ALL, &end, sizeof end);
    meg_temporary_exit(status);
}

static void decide(void) MEG_NORETURN;
static void decide(void)
{
    const double patience_s = locked_patience_s();
    struct watchdog_snapshot v = { watchdog.size, watchdog.rank,   place_now(), watchdog.host,
                                   watchdog.link, watchdog.nlinks, patience_s };
    struct meg_str s = { 0 };

    if (watchdog.rank > FALLBACK_REPORTERS)
        meg_temporary_exit(meg_exit_status(MEG_EPEER));
    if (watchdog.verdict == WATCHDOG_CAUSE_LOST && watchdog.paused_s > watchdog.deadline_s)
        meg_str_printf(&s, "rank %d of %d on %s was itself stopped for %.1f s, longer than the others wait; ",
                       watchdog.rank, watchdog.size, watchdog.host, watchdog.paused_s);
    if (watchdog.verdict == WATCHDOG_CAUSE_LOST)
        watchdog_report_lost(&s, &v, watchdog.lost);
    else
        watchdog_report_timeout(&s, &v);
    say(s.s);
    end_all(meg_exit_status(MEG_EPEER));
}

/* Obey SIGTERM: nobody is lost.  Rank 0 says so for all, be it asked itself or told. */
static void obey(void) MEG_NORETURN;
static void obey(void)
{
    struct watchdog_exit ends = { 128 + SIGTERM, 0, "it was ended by SIGTERM" };

    if (watchdog_is_server()) {
        say("ended by SIGTERM");
        tell_all(WATCHDOG_EXIT_ALL, &ends, sizeof ends);
    } else {
        tell_all(WATCHDOG_EXITING, &ends, sizeof ends);
    }
    meg_temporary_unlink_all();
    signal(SIGTERM, SIG_DFL);
    kill(getpid(), SIGTERM);
    for (;;)
        pause();
}

/* Rank 0's decision is due now; another rank's when rank 0 had its chance, one rank after the other. */
static void expect(enum watchdog_exit_cause v, double host_s, double other_s)
{
    const int turn = watchdog.rank < FALLBACK_REPORTERS ? watchdog.rank : FALLBACK_REPORTERS;

    watchdog.verdict = v;
    watchdog.left_s = watchdog_is_server() ? host_s : other_s + (turn - 1);
}

/* Whatever else was the matter follows from it. */
static void lost(const struct watchdog_conn *l)
{
    if (watchdog.verdict == WATCHDOG_CAUSE_LOST || watchdog.verdict == WATCHDOG_CAUSE_PEER_EXIT)
        return;
    watchdog.lost = l;
    expect(WATCHDOG_CAUSE_LOST, 0, 0);
}

static void late(bool must_end)
{
    watchdog.must_end |= must_end;
    if (watchdog.verdict != WATCHDOG_CAUSE_NONE)
        return;
    for (int i = 0; i < watchdog.nlinks; i++)
        watchdog.link[i].has_answered = false;
    expect(WATCHDOG_CAUSE_TIMEOUT, ANSWER_S, 2 * ANSWER_S);
    tell_all(watchdog_is_server() ? WATCHDOG_QUERY : WATCHDOG_TIMEOUT, NULL, 0);
}

static bool all_answered(void)
{
    for (int i = 0; i < watchdog.nlinks; i++)
        if (is_peer(&watchdog.link[i]) && !watchdog.link[i].has_answered)
            return false;
    return true;
}

static void judge(double passed)
{
    if (watchdog.verdict == WATCHDOG_CAUSE_NONE)
        return;
    watchdog.left_s -= passed;
    if (watchdog.verdict == WATCHDOG_CAUSE_TIMEOUT && all_answered()) {
        if (!watchdog.must_end)
            watchdog.verdict = WATCHDOG_CAUSE_NONE; /* they were only slow to be heard */
        else if (watchdog_is_server())
            decide();
        else if (watchdog.left_s <= 0)
            watchdog.left_s = ANSWER_S; /* rank 0 lives: it is its to decide */
    }
    if (watchdog.verdict == WATCHDOG_CAUSE_NONE || watchdog.left_s > 0)
        return;
    if (watchdog.verdict == WATCHDOG_CAUSE_SIGTERM)
        obey();
    if (watchdog.verdict == WATCHDOG_CAUSE_PEER_EXIT)
        meg_temporary_exit(watchdog.ended_status);
    decide();
}

/* ---- frames ------------------------------------------------------------------------------------- */

static void drop(struct watchdog_conn *l)
{
    close(l->fd);
    memset(l, 0, sizeof *l);
    l->fd = l->rank = -1;
}

static bool is_taken(int rank)
{
    for (int i = 0; i < watchdog.nlinks; i++)
        if (watchdog.link[i].rank == rank)
            return true;
    return false;
}

/* Ranks that contradict each other never were one run. */
static void exit_on_conflict(struct watchdog_conn *l, const char *fmt, ...) MEG_NORETURN MEG_PRINTF(2, 3);
static void exit_on_conflict(struct watchdog_conn *l, const char *fmt, ...)
{
    struct watchdog_exit ends = { .status = meg_exit_status(MEG_EUSAGE) };
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(ends.why, sizeof ends.why, fmt, ap);
    va_end(ap);
    say(ends.why);
    watchdog_send(l, WATCHDOG_EXIT_ALL, &ends, sizeof ends);
    end_all(ends.status);
}

/* Tell a process that it cannot join, and why; the run continues without it. */
static void refuse(struct watchdog_conn *l, const char *fmt, ...) MEG_PRINTF(2, 3);
static void refuse(struct watchdog_conn *l, const char *fmt, ...)
{
    struct watchdog_exit ends = { .status = meg_exit_status(MEG_EUSAGE) };
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(ends.why, sizeof ends.why, fmt, ap);
    va_end(ap);
    watchdog_send(l, WATCHDOG_EXIT_ALL, &ends, sizeof ends);
}

/* All ranks have joined: any other process with the run's token is of another run of the same name. */
static void refuse_late_join(struct watchdog_conn *l, int rank)
{
    struct meg_str s = { 0 };

    refuse(l, "the run there has all of its %d ranks; give this one a MASTER_PORT or a --rdzv-id of its own",
           watchdog.size);
    if (watchdog.has_warned)
        return;
    watchdog.has_warned = true;
    meg_str_printf(&s,
                   "refused a process on %s that calls itself rank %d, because all %d ranks have joined: another "
                   "run uses the same MASTER_PORT",
                   l->host, rank, watchdog.size);
    say(s.s);
    meg_str_free(&s);
}

static bool has_token(const struct watchdog_join_request *j)
{
    unsigned char differs = 0;

    for (size_t i = 0; i < sizeof j->token; i++)
        differs |= j->token[i] ^ watchdog.invite.token[i];
    return !differs;
}

static bool join(struct watchdog_conn *l, const struct watchdog_join_request *j)
{
    struct watchdog_welcome welcome;

    if (!watchdog_is_server() || l->rank >= 0)
        return false;
    if (!has_token(j)) {
        refuse(l, "another run uses it; give this one another MASTER_PORT, or all its ranks one --rdzv-id");
        return false;
    }
    watchdog_copy_name(l->host, j->host, sizeof l->host);
    memcpy(welcome.host, watchdog.host, sizeof welcome.host);
    if (watchdog.ncome == watchdog.size) {
        refuse_late_join(l, j->rank);
        return false;
    }
    if (j->size != watchdog.size)
        exit_on_conflict(l, "rank %d on %s was started as one of %d ranks, and rank 0 on %s as one of %d", j->rank,
                         l->host, j->size, watchdog.host, watchdog.size);
    if (j->rank < 1 || j->rank >= watchdog.size || is_taken(j->rank))
        exit_on_conflict(l, "two processes are rank %d, one of them on %s", j->rank, l->host);
    l->rank = j->rank;
    pthread_mutex_lock(&watchdog.lock);
    watchdog.has_come[l->rank] = true;
    watchdog.ncome++;
    pthread_mutex_unlock(&watchdog.lock);
    watchdog_send(l, WATCHDOG_WELCOME, &welcome, sizeof welcome);
    return true;
}

/* Its own message stands in its own output; of SIGTERM it has none. */
static void report_peer_exit(const struct watchdog_conn *l, const struct watchdog_exit *ends)
{
    struct meg_str s = { 0 };

    meg_str_printf(&s, "rank %d of %d on %s ended the run: %.*s", l->rank, watchdog.size, l->host,
                   (int)sizeof ends->why - 1, ends->why);
    if (ends->status != 128 + SIGTERM)
        meg_info("%s", s.s);
    else if (!watchdog.was_terminated)
        say(s.s);
    meg_str_free(&s);
}

/* With its status: the launcher, which that rank calls, is to take it from there, and not our end for the first. */
static void end_after(const struct watchdog_exit *ends)
{
    if (!ends->is_abort)
        meg_temporary_exit(ends->status);
    watchdog.ended_status = ends->status;
    meg_temporary_unlink_all(); /* the launcher may use SIGKILL */
    expect(WATCHDOG_CAUSE_PEER_EXIT, ABORT_S, ABORT_S);
}

/* False: this frame has no place here. */
static bool take(struct watchdog_conn *l, enum watchdog_frame_type kind, const void *payload)
{
    struct watchdog_join_request j;
    struct watchdog_exit ends;
    struct watchdog_rank_state here;
    struct meg_kv_store_entry note;

    if (l->rank < 0 && kind != WATCHDOG_JOIN)
        return false;
    l->silent_s = 0;
    switch (kind) {
    case WATCHDOG_JOIN: memcpy(&j, payload, sizeof j); return join(l, &j);
    case WATCHDOG_WELCOME: return true;
    case WATCHDOG_HEARTBEAT:
        memcpy(&l->place, payload, sizeof l->place);
        l->has_answered = true;
        return true;
    case WATCHDOG_QUERY:
        here = place_now();
        watchdog_send(l, WATCHDOG_HEARTBEAT, &here, sizeof here);
        return true;
    case WATCHDOG_TIMEOUT: late(true); return true;
    case WATCHDOG_EXITING:
        memcpy(&ends, payload, sizeof ends);
        report_peer_exit(l, &ends);
        tell_all(WATCHDOG_EXIT_ALL, &ends, sizeof ends);
        end_after(&ends);
        return true;
    case WATCHDOG_EXIT_ALL:
        memcpy(&ends, payload, sizeof ends);
        end_after(&ends);
        return true;
    case WATCHDOG_KV_ENTRY:
    case WATCHDOG_KV_GET:
        memcpy(&note, payload, sizeof note);
        watchdog_kv_receive(l, kind, &note);
        return true;
    case WATCHDOG_BYE: l->has_left = true; return true;
    }
    return false;
}

static void hear(struct watchdog_conn *l)
{
    enum watchdog_frame_type kind;
    const void *payload;
    int r = 0;

    while (l->fd >= 0 && (r = watchdog_recv(l, &kind, &payload)) == 1 && take(l, kind, payload))
        ;
    if (r == 0)
        return;
    if (r < 0 && is_peer(l)) {
        lost(l);
        epoll_ctl(watchdog.epoll, EPOLL_CTL_DEL, l->fd, NULL);
    } else if (l->fd >= 0) {
        drop(l);
    }
}

bool watchdog_epoll_add(int fd, void *who)
{
    struct epoll_event e = { .events = EPOLLIN, .data.ptr = who };

    return epoll_ctl(watchdog.epoll, EPOLL_CTL_ADD, fd, &e) == 0;
}

/*
 * Find a link for a new connection: one that is free, else that of the oldest connection which has not joined, so that
 * idle connections of strangers keep no rank out.  There are more links than ranks.
 */
static struct watchdog_conn *alloc_conn(void)
{
    struct watchdog_conn *oldest = NULL;

    for (int i = 0; i < watchdog.nlinks; i++) {
        struct watchdog_conn *l = &watchdog.link[i];

        if (l->fd < 0)
            return l;
        if (l->rank < 0 && (!oldest || l->arrival < oldest->arrival))
            oldest = l;
    }
    MEG_ASSERT(oldest);
    drop(oldest);
    return oldest;
}

static void accept_conns(void)
{
    int fd;

    while ((fd = watchdog_accept(watchdog.listening)) >= 0) {
        struct watchdog_conn *l = alloc_conn();

        if (watchdog_epoll_add(fd, l)) {
            l->fd = fd;
            l->arrival = watchdog.arrivals++;
        } else {
            close(fd);
        }
    }
}

/* ---- the thread --------------------------------------------------------------------------------- */

/* What the main thread or the signal handler woke us for; false: the end of the thread. */
static bool handle_wakeup(void)
{
    char bytes[64];
    bool is_over;

    while (read(watchdog.poke[0], bytes, sizeof bytes) > 0)
        ;
    if (watchdog.was_terminated && watchdog.verdict == WATCHDOG_CAUSE_PEER_EXIT)
        meg_temporary_exit(watchdog.ended_status);
    if (watchdog.was_terminated && watchdog.verdict == WATCHDOG_CAUSE_NONE) {
        watchdog.verdict = WATCHDOG_CAUSE_SIGTERM;
        watchdog.left_s = TERM_S;
    }
    pthread_mutex_lock(&watchdog.lock);
    if (watchdog.is_ending && !watchdog.has_told) {
        tell_all(watchdog_is_server() ? WATCHDOG_EXIT_ALL : WATCHDOG_EXITING, &watchdog.ends, sizeof watchdog.ends);
        watchdog.has_told = true;
        pthread_cond_broadcast(&watchdog.told);
    }
    if (watchdog.is_leaving)
        tell_all(WATCHDOG_BYE, NULL, 0);
    is_over =
        watchdog.is_leaving || watchdog.is_ending; /* and was told of: what is asked for from here on pokes us again */
    pthread_mutex_unlock(&watchdog.lock);
    watchdog_kv_flush();
    return !is_over;
}

static void check_heartbeats(double passed)
{
    for (int i = 0; i < watchdog.nlinks; i++) {
        struct watchdog_conn *l = &watchdog.link[i];

        if (l->fd >= 0)
            l->silent_s += passed;
        if (is_peer(l) && l->silent_s > watchdog.deadline_s)
            late(false);
        else if (l->fd >= 0 && l->rank < 0 && l->silent_s > JOIN_S)
            drop(l);
    }
}

static void check_wait_timeout(double passed)
{
    double patience_s;
    bool is_same;

    pthread_mutex_lock(&watchdog.lock);
    patience_s = watchdog_timeout_s();
    is_same = watchdog.place.is_waiting && watchdog.wait == watchdog.wait_seen;
    watchdog.wait_seen = watchdog.wait;
    pthread_mutex_unlock(&watchdog.lock);
    watchdog.waited_s = is_same ? watchdog.waited_s + passed : 0;
    if (watchdog.waited_s > patience_s)
        late(true);
}

/* Time that went by while we were stopped is nobody's; that it did is remembered for a while. */
static double discount_pause(double gap, double tick_s)
{
    if (gap > tick_s + 1) {
        watchdog.paused_s = gap;
        watchdog.since_pause_s = 0;
        return tick_s;
    }
    watchdog.since_pause_s += gap;
    if (watchdog.since_pause_s > PAUSE_S)
        watchdog.paused_s = 0;
    return gap;
}

static void tick(double passed)
{
    watchdog.since_beat_s += passed;
    if (watchdog.since_beat_s >= watchdog.beat_s) {
        struct watchdog_rank_state here = place_now();

        tell_all(WATCHDOG_HEARTBEAT, &here, sizeof here);
        watchdog.since_beat_s = 0;
    }
    check_heartbeats(passed);
    check_wait_timeout(passed);
    judge(passed);
}

void *watchdog_monitor(void *arg)
{
    const double tick_s = watchdog.beat_s < 0.25 ? watchdog.beat_s : 0.25;
    double before = meg_now_s();

    (void)arg;
    for (;;) {
        struct epoll_event event[64];
        const int n = epoll_wait(watchdog.epoll, event, 64, (int)(tick_s * 1000));
        const double now = meg_now_s();
        const double passed = discount_pause(now - before, tick_s);
        bool is_poked = false;

        before = now;
        for (int i = 0; i < n; i++) {
            if (event[i].data.ptr == &watchdog.listening)
                accept_conns();
            else if (event[i].data.ptr == &watchdog.poke)
                is_poked = true;
            else
                hear(event[i].data.ptr);
        }
        if (is_poked && !handle_wakeup())
            return NULL;
        tick(passed);
    }
}
