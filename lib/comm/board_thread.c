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
#include "comm/board_internal.h"
#include "file/temporary.h"

enum { DEPUTIES = 3 };               /* ranks after rank 0 that speak when it can not, one after the other */
#define JOIN_S   10.0                /* for a connection to say who it is */
#define ANSWER_S 1.0                 /* for a rank to say where it is, and for rank 0 to decide */
#define ABORT_S  2.0                 /* for a launcher to end us where a rank told it to */
#define TERM_S   0.3                 /* between SIGTERM and obeying it */
#define PAUSE_S  5.0                 /* in which our own stop explains what others do */

struct board board = { .lock = PTHREAD_MUTEX_INITIALIZER, .told = PTHREAD_COND_INITIALIZER,
                       .listening = -1, .epoll = -1, .poke = { -1, -1 } };

static bool is_peer(const struct board_link *l)
{
    return l->fd >= 0 && l->rank >= 0 && !l->has_left;
}

static struct board_place place_now(void)
{
    struct board_place p;

    pthread_mutex_lock(&board.lock);
    p = board.place;
    pthread_mutex_unlock(&board.lock);
    return p;
}

static double locked_patience_s(void)
{
    double s;

    pthread_mutex_lock(&board.lock);
    s = board_patience_s();
    pthread_mutex_unlock(&board.lock);
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
    if (board.rank)
        meg_str_printf(&s, "[%d]", board.rank);
    meg_str_printf(&s, ": %s", text);
    meg_log_sanitize(s.s + start);
    meg_str_add(&s, "\n", 1);
    if (write(STDERR_FILENO, s.s, s.n) < 0)
        return;                      /* there is no one left to tell */
    meg_str_free(&s);
}

static void tell_all(enum board_kind kind, const void *payload, size_t n)
{
    for (int i = 0; i < board.nlinks; i++)
        if (is_peer(&board.link[i]))
            board_send(&board.link[i], kind, payload, n);
}

/* Rank 0 ends the others, too; the message is out before. */
static void end_all(int status) MEG_NORETURN;
static void end_all(int status)
{
    struct board_ends end = { .status = status };

    if (board_is_host())
        tell_all(BOARD_END, &end, sizeof end);
    meg_temporary_exit(status);
}

static void decide(void) MEG_NORETURN;
static void decide(void)
{
    const double patience_s = locked_patience_s();
    struct board_view v = { board.size, board.rank, place_now(), board.host, board.link, board.nlinks, patience_s };
    struct meg_str s = { 0 };

    if (board.rank > DEPUTIES)
        meg_temporary_exit(meg_exit_status(MEG_EPEER));
    if (board.verdict == BOARD_GONE && board.paused_s > board.deadline_s)
        meg_str_printf(&s, "rank %d of %d on %s was itself stopped for %.1f s, longer than the others wait; ",
                       board.rank, board.size, board.host, board.paused_s);
    if (board.verdict == BOARD_GONE)
        board_say_gone(&s, &v, board.lost);
    else
        board_say_late(&s, &v);
    say(s.s);
    end_all(meg_exit_status(MEG_EPEER));
}

/* Obey SIGTERM: nobody is lost.  Rank 0 says so for all, be it asked itself or told. */
static void obey(void) MEG_NORETURN;
static void obey(void)
{
    struct board_ends ends = { 128 + SIGTERM, 0, "it was ended by SIGTERM" };

    if (board_is_host()) {
        say("ended by SIGTERM");
        tell_all(BOARD_END, &ends, sizeof ends);
    } else {
        tell_all(BOARD_ENDS, &ends, sizeof ends);
    }
    meg_temporary_unlink_all();
    signal(SIGTERM, SIG_DFL);
    kill(getpid(), SIGTERM);
    for (;;)
        pause();
}

/* Rank 0's decision is due now; another rank's when rank 0 had its chance, one rank after the other. */
static void expect(enum board_verdict v, double host_s, double other_s)
{
    const int turn = board.rank < DEPUTIES ? board.rank : DEPUTIES;

    board.verdict = v;
    board.left_s = board_is_host() ? host_s : other_s + (turn - 1);
}

/* Whatever else was the matter follows from it. */
static void lost(const struct board_link *l)
{
    if (board.verdict == BOARD_GONE || board.verdict == BOARD_ENDED)
        return;
    board.lost = l;
    expect(BOARD_GONE, 0, 0);
}

static void late(bool must_end)
{
    board.must_end |= must_end;
    if (board.verdict != BOARD_NONE)
        return;
    for (int i = 0; i < board.nlinks; i++)
        board.link[i].has_answered = false;
    expect(BOARD_LATE, ANSWER_S, 2 * ANSWER_S);
    tell_all(board_is_host() ? BOARD_ASK : BOARD_WAITED, NULL, 0);
}

static bool all_answered(void)
{
    for (int i = 0; i < board.nlinks; i++)
        if (is_peer(&board.link[i]) && !board.link[i].has_answered)
            return false;
    return true;
}

static void judge(double passed)
{
    if (board.verdict == BOARD_NONE)
        return;
    board.left_s -= passed;
    if (board.verdict == BOARD_LATE && all_answered()) {
        if (!board.must_end)
            board.verdict = BOARD_NONE;        /* they were only slow to be heard */
        else if (board_is_host())
            decide();
        else if (board.left_s <= 0)
            board.left_s = ANSWER_S;     /* rank 0 lives: it is its to decide */
    }
    if (board.verdict == BOARD_NONE || board.left_s > 0)
        return;
    if (board.verdict == BOARD_TERMINATED)
        obey();
    if (board.verdict == BOARD_ENDED)
        meg_temporary_exit(board.ended_status);
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
    for (int i = 0; i < board.nlinks; i++)
        if (board.link[i].rank == rank)
            return true;
    return false;
}

/* Ranks that contradict each other never were one run. */
static void quarrel(struct board_link *l, const char *fmt, ...) MEG_NORETURN MEG_PRINTF(2, 3);
static void quarrel(struct board_link *l, const char *fmt, ...)
{
    struct board_ends ends = { .status = meg_exit_status(MEG_EUSAGE) };
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(ends.why, sizeof ends.why, fmt, ap);
    va_end(ap);
    say(ends.why);
    board_send(l, BOARD_END, &ends, sizeof ends);
    end_all(ends.status);
}

/* Tell a process that it cannot join, and why; the run continues without it. */
static void refuse(struct board_link *l, const char *fmt, ...) MEG_PRINTF(2, 3);
static void refuse(struct board_link *l, const char *fmt, ...)
{
    struct board_ends ends = { .status = meg_exit_status(MEG_EUSAGE) };
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(ends.why, sizeof ends.why, fmt, ap);
    va_end(ap);
    board_send(l, BOARD_END, &ends, sizeof ends);
}

/* All ranks have joined: any other process with the run's token is of another run of the same name. */
static void refuse_newcomer(struct board_link *l, int rank)
{
    struct meg_str s = { 0 };

    refuse(l, "the run there has all of its %d ranks; give this one a MASTER_PORT or a --rdzv-id of its own",
           board.size);
    if (board.has_warned)
        return;
    board.has_warned = true;
    meg_str_printf(&s, "refused a process on %s that calls itself rank %d, because all %d ranks have joined: another "
                   "run uses the same MASTER_PORT", l->host, rank, board.size);
    say(s.s);
    meg_str_free(&s);
}

static bool has_token(const struct board_join *j)
{
    unsigned char differs = 0;

    for (size_t i = 0; i < sizeof j->token; i++)
        differs |= j->token[i] ^ board.invite.token[i];
    return !differs;
}

static bool join(struct board_link *l, const struct board_join *j)
{
    struct board_welcome welcome;

    if (!board_is_host() || l->rank >= 0)
        return false;
    if (!has_token(j)) {
        refuse(l, "another run uses it; give this one another MASTER_PORT, or all its ranks one --rdzv-id");
        return false;
    }
    board_copy_name(l->host, j->host, sizeof l->host);
    memcpy(welcome.host, board.host, sizeof welcome.host);
    if (board.ncome == board.size) {
        refuse_newcomer(l, j->rank);
        return false;
    }
    if (j->size != board.size)
        quarrel(l, "rank %d on %s was started as one of %d ranks, and rank 0 on %s as one of %d", j->rank, l->host,
                j->size, board.host, board.size);
    if (j->rank < 1 || j->rank >= board.size || is_taken(j->rank))
        quarrel(l, "two processes are rank %d, one of them on %s", j->rank, l->host);
    l->rank = j->rank;
    pthread_mutex_lock(&board.lock);
    board.has_come[l->rank] = true;
    board.ncome++;
    pthread_mutex_unlock(&board.lock);
    board_send(l, BOARD_WELCOME, &welcome, sizeof welcome);
    return true;
}

/* Its own message stands in its own output; of SIGTERM it has none. */
static void heard_end(const struct board_link *l, const struct board_ends *ends)
{
    struct meg_str s = { 0 };

    meg_str_printf(&s, "rank %d of %d on %s ended the run: %.*s", l->rank, board.size, l->host,
                   (int)sizeof ends->why - 1, ends->why);
    if (ends->status != 128 + SIGTERM)
        meg_info("%s", s.s);
    else if (!board.was_terminated)
        say(s.s);
    meg_str_free(&s);
}

/* With its status: the launcher, which that rank calls, is to take it from there, and not our end for the first. */
static void end_after(const struct board_ends *ends)
{
    if (!ends->is_abort)
        meg_temporary_exit(ends->status);
    board.ended_status = ends->status;
    meg_temporary_unlink_all(); /* the launcher may use SIGKILL */
    expect(BOARD_ENDED, ABORT_S, ABORT_S);
}

/* False: this frame has no place here. */
static bool take(struct board_link *l, enum board_kind kind, const void *payload)
{
    struct board_join j;
    struct board_ends ends;
    struct board_place here;
    struct meg_board_note note;

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
        tell_all(BOARD_END, &ends, sizeof ends);
        end_after(&ends);
        return true;
    case BOARD_END:
        memcpy(&ends, payload, sizeof ends);
        end_after(&ends);
        return true;
    case BOARD_NOTE:
    case BOARD_WANT:
        memcpy(&note, payload, sizeof note);
        board_take_note(l, kind, &note);
        return true;
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
        epoll_ctl(board.epoll, EPOLL_CTL_DEL, l->fd, NULL);
    } else if (l->fd >= 0) {
        drop(l);
    }
}

bool board_listen_to(int fd, void *who)
{
    struct epoll_event e = { .events = EPOLLIN, .data.ptr = who };

    return epoll_ctl(board.epoll, EPOLL_CTL_ADD, fd, &e) == 0;
}

/*
 * Find a link for a new connection: one that is free, else that of the oldest connection which has not joined, so that
 * idle connections of strangers keep no rank out.  There are more links than ranks.
 */
static struct board_link *make_place(void)
{
    struct board_link *oldest = NULL;

    for (int i = 0; i < board.nlinks; i++) {
        struct board_link *l = &board.link[i];

        if (l->fd < 0)
            return l;
        if (l->rank < 0 && (!oldest || l->arrival < oldest->arrival))
            oldest = l;
    }
    MEG_ASSERT(oldest);
    drop(oldest);
    return oldest;
}

static void let_in(void)
{
    int fd;

    while ((fd = board_accept(board.listening)) >= 0) {
        struct board_link *l = make_place();

        if (board_listen_to(fd, l)) {
            l->fd = fd;
            l->arrival = board.arrivals++;
        } else {
            close(fd);
        }
    }
}

/* ---- the thread --------------------------------------------------------------------------------- */

/* What the main thread or the signal handler woke us for; false: the end of the thread. */
static bool look_around(void)
{
    char bytes[64];
    bool is_over;

    while (read(board.poke[0], bytes, sizeof bytes) > 0)
        ;
    if (board.was_terminated && board.verdict == BOARD_ENDED)
        meg_temporary_exit(board.ended_status);
    if (board.was_terminated && board.verdict == BOARD_NONE) {
        board.verdict = BOARD_TERMINATED;
        board.left_s = TERM_S;
    }
    pthread_mutex_lock(&board.lock);
    if (board.is_ending && !board.has_told) {
        tell_all(board_is_host() ? BOARD_END : BOARD_ENDS, &board.ends, sizeof board.ends);
        board.has_told = true;
        pthread_cond_broadcast(&board.told);
    }
    if (board.is_leaving)
        tell_all(BOARD_BYE, NULL, 0);
    is_over = board.is_leaving || board.is_ending; /* and was told of: what is asked for from here on pokes us again */
    pthread_mutex_unlock(&board.lock);
    board_pass_notes();
    return !is_over;
}

static void watch_silence(double passed)
{
    for (int i = 0; i < board.nlinks; i++) {
        struct board_link *l = &board.link[i];

        if (l->fd >= 0)
            l->silent_s += passed;
        if (is_peer(l) && l->silent_s > board.deadline_s)
            late(false);
        else if (l->fd >= 0 && l->rank < 0 && l->silent_s > JOIN_S)
            drop(l);
    }
}

static void watch_wait(double passed)
{
    double patience_s;
    bool is_same;

    pthread_mutex_lock(&board.lock);
    patience_s = board_patience_s();
    is_same = board.place.is_waiting && board.wait == board.wait_seen;
    board.wait_seen = board.wait;
    pthread_mutex_unlock(&board.lock);
    board.waited_s = is_same ? board.waited_s + passed : 0;
    if (board.waited_s > patience_s)
        late(true);
}

/* Time that went by while we were stopped is nobody's; that it did is remembered for a while. */
static double forgiven(double gap, double tick_s)
{
    if (gap > tick_s + 1) {
        board.paused_s = gap;
        board.since_pause_s = 0;
        return tick_s;
    }
    board.since_pause_s += gap;
    if (board.since_pause_s > PAUSE_S)
        board.paused_s = 0;
    return gap;
}

static void tick(double passed)
{
    board.since_beat_s += passed;
    if (board.since_beat_s >= board.beat_s) {
        struct board_place here = place_now();

        tell_all(BOARD_PLACE, &here, sizeof here);
        board.since_beat_s = 0;
    }
    watch_silence(passed);
    watch_wait(passed);
    judge(passed);
}

void *board_watch(void *arg)
{
    const double tick_s = board.beat_s < 0.25 ? board.beat_s : 0.25;
    double before = meg_now_s();

    (void)arg;
    for (;;) {
        struct epoll_event event[64];
        const int n = epoll_wait(board.epoll, event, 64, (int)(tick_s * 1000));
        const double now = meg_now_s();
        const double passed = forgiven(now - before, tick_s);
        bool is_poked = false;

        before = now;
        for (int i = 0; i < n; i++) {
            if (event[i].data.ptr == &board.listening)
                let_in();
            else if (event[i].data.ptr == &board.poke)
                is_poked = true;
            else
                hear(event[i].data.ptr);
        }
        if (is_poked && !look_around())
            return NULL;
        tick(passed);
    }
}
