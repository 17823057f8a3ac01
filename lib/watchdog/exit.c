/*
 * exit.c - end the process, and all ranks, because of a lost rank, a timeout, a signal or the exit of another rank.
 *
 * Rank 0 reports a failure and ends the run.  If rank 0 does not, one of ranks 1 to 3 reports the failure, and each
 * rank ends itself.
 */
#include <signal.h>
#include <stdio.h>
#include <unistd.h>
#include "base/log.h"
#include "file/temporary.h"
#include "watchdog/internal.h"

enum { FALLBACK_REPORTERS = 3 }; /* if rank 0 prints no report, rank 1 does; if rank 1 does not, rank 2; then rank 3 */
#define ANSWER_S 1.0             /* time limit for a rank to reply to WATCHDOG_QUERY, and for rank 0 to report */

struct watchdog_rank_state watchdog_own_state(struct meg_watchdog *w)
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

void watchdog_print(const struct meg_watchdog *w, const char *text)
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

void watchdog_exit_now(struct meg_watchdog *w, int status)
{
    watchdog_abort(w);
    meg_temporary_exit(status);
}

void watchdog_send_all(struct meg_watchdog *w, enum watchdog_frame_type type, const void *payload, size_t n)
{
    for (int i = 0; i < w->nconns; i++)
        if (watchdog_is_peer(&w->conn[i]))
            watchdog_send(&w->conn[i], type, payload, n);
}

void watchdog_end_all(struct meg_watchdog *w, int status)
{
    struct watchdog_exit message = { .status = status };

    if (watchdog_is_server(w))
        watchdog_send_all(w, WATCHDOG_EXIT_ALL, &message, sizeof message);
    watchdog_exit_now(w, status);
}

/* Exit because of a lost rank or a timeout; ranks up to FALLBACK_REPORTERS first print the report. */
static MEG_NORETURN void report_and_exit(struct meg_watchdog *w)
{
    const struct watchdog_snapshot v = { .size = w->size,
                                         .rank = w->rank,
                                         .own_state = watchdog_own_state(w),
                                         .host = w->host,
                                         .conn = w->conn,
                                         .nconns = w->nconns,
                                         .timeout_s = wait_timeout_s(w) };
    struct meg_str s = { 0 };

    if (w->rank > FALLBACK_REPORTERS)
        watchdog_exit_now(w, meg_exit_status(MEG_EPEER));
    if (w->cause == WATCHDOG_CAUSE_LOST && w->paused_s > w->timeout_s)
        meg_str_printf(&s, "rank %d of %d on %s was suspended for %.1f s, longer than the timeout of the other ranks; ",
                       w->rank, w->size, w->host, w->paused_s);
    if (w->cause == WATCHDOG_CAUSE_LOST)
        watchdog_report_lost(&s, &v, w->lost_conn);
    else
        watchdog_report_timeout(&s, &v);
    watchdog_print(w, s.s);
    watchdog_end_all(w, meg_exit_status(MEG_EPEER));
}

void watchdog_exit_all(struct meg_watchdog *w, int status, const char *fmt, ...)
{
    char text[400];

    MEG_FORMAT_ARGS(text, fmt);
    watchdog_print(w, text);
    watchdog_end_all(w, status);
}

/*
 * Inform the other ranks of the SIGTERM that this process received, then end this process by SIGTERM.  Call this if no
 * lost rank was found that explains the signal.  Rank 0 prints one message for all ranks: here if rank 0 received the
 * signal, and otherwise in report_peer_exit.
 */
static MEG_NORETURN void exit_on_sigterm(struct meg_watchdog *w)
{
    struct watchdog_exit message = { 128 + SIGTERM, 0, "it received SIGTERM" };

    if (watchdog_is_server(w)) {
        watchdog_print(w, "ended by SIGTERM");
        watchdog_send_all(w, WATCHDOG_EXIT_ALL, &message, sizeof message);
    } else {
        watchdog_send_all(w, WATCHDOG_EXITING, &message, sizeof message);
    }
    watchdog_abort(w);
    meg_temporary_unlink_all();
    signal(SIGTERM, SIG_DFL);
    kill(getpid(), SIGTERM);
    for (;;)
        pause();
}

void watchdog_schedule_exit(struct meg_watchdog *w, enum watchdog_exit_cause cause, double server_s, double other_s)
{
    const int order = w->rank < FALLBACK_REPORTERS ? w->rank : FALLBACK_REPORTERS;

    w->cause = cause;
    w->grace_s = watchdog_is_server(w) ? server_s : other_s + (order - 1);
}

void watchdog_on_conn_lost(struct meg_watchdog *w, const struct watchdog_conn *c)
{
    if (w->cause == WATCHDOG_CAUSE_LOST || w->cause == WATCHDOG_CAUSE_PEER_EXIT)
        return;
    w->lost_conn = c;
    watchdog_schedule_exit(w, WATCHDOG_CAUSE_LOST, 0, 0);
}

void watchdog_on_timeout(struct meg_watchdog *w, bool must_exit)
{
    w->must_exit |= must_exit;
    if (w->cause != WATCHDOG_CAUSE_NONE)
        return;
    for (int i = 0; i < w->nconns; i++)
        w->conn[i].has_replied = false;
    watchdog_schedule_exit(w, WATCHDOG_CAUSE_TIMEOUT, ANSWER_S, 2 * ANSWER_S);
    watchdog_send_all(w, watchdog_is_server(w) ? WATCHDOG_QUERY : WATCHDOG_TIMEOUT, NULL, 0);
}

static bool all_replied(const struct meg_watchdog *w)
{
    for (int i = 0; i < w->nconns; i++)
        if (watchdog_is_peer(&w->conn[i]) && !w->conn[i].has_replied)
            return false;
    return true;
}

void watchdog_check_exit(struct meg_watchdog *w, double passed)
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
        watchdog_exit_now(w, w->peer_status);
    report_and_exit(w);
}
