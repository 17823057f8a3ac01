/* exit_report.c - format exit reports: which ranks are lost or late, and the state of the others. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "watchdog/internal.h"

enum {
    STATE_LEN = 160, /* maximum length of the text of one state, in bytes */
    MAX_LINES = 6,   /* maximum number of states in a report */
    MAX_BYTES = 1800 /* report length, in bytes, beyond which no further state is appended */
};

/* State of this rank or of a peer. */
struct rank_info {
    int rank;
    const char *host;
    struct watchdog_rank_state state;
    bool is_stopped;
    double since_heard_s;
    char text[STATE_LEN];
};

static void format_state(char *out, const struct watchdog_rank_state *p)
{
    char step[40] = "before the first step";

    if (p->step >= 0)
        snprintf(step, sizeof step, "at step %" PRId64, p->step);
    if (p->is_waiting)
        snprintf(out, STATE_LEN, "%s, waiting in %.*s (operation %" PRId64 " of group %.*s)", step, (int)sizeof p->op,
                 p->op, p->op_number, (int)sizeof p->group, p->group);
    else if (p->task[0])
        snprintf(out, STATE_LEN, "%s, %.*s", step, (int)sizeof p->task, p->task);
    else
        snprintf(out, STATE_LEN, "%s, not waiting", step);
}

static int by_rank(const void *x, const void *y)
{
    return ((const struct rank_info *)x)->rank - ((const struct rank_info *)y)->rank;
}

/* Collect the state of this rank and of all connected peers, sorted by rank.  Returns their number. */
static int collect_ranks(struct rank_info **out, const struct watchdog_snapshot *v)
{
    struct rank_info *s = meg_new(((size_t)v->nconns + 1) * sizeof *s);
    int n = 0;

    s[n++] = (struct rank_info){ .rank = v->rank, .host = v->host, .state = v->own_state };
    for (int i = 0; i < v->nconns; i++) {
        const struct watchdog_conn *c = &v->conn[i];

        if (c->rank >= 0 && !c->has_closed)
            s[n++] = (struct rank_info){ .rank = c->rank,
                                         .host = c->host,
                                         .state = c->state,
                                         .is_stopped = !c->has_replied,
                                         .since_heard_s = c->since_heard_s };
    }
    for (int i = 0; i < n; i++)
        format_state(s[i].text, &s[i].state);
    qsort(s, (size_t)n, sizeof *s, by_rank);
    *out = s;
    return n;
}

/*
 * Append the ranks of s for which is_in is true, as "rank 3" or "ranks 0, 2-5"; after 20 ranges, append "..." instead.
 */
static void list_ranks(struct meg_str *out, const struct rank_info *s, const bool *is_in, int n)
{
    int count = 0, shown = 0;

    for (int i = 0; i < n; i++)
        count += is_in[i];
    meg_str_printf(out, count == 1 ? "rank " : "ranks ");
    for (int i = 0, end; i < n; i = end) {
        end = i + 1;
        if (!is_in[i])
            continue;
        while (end < n && is_in[end] && s[end].rank == s[end - 1].rank + 1)
            end++;
        if (shown++ == 20) {
            meg_str_printf(out, ", ...");
            return;
        }
        meg_str_printf(out, "%s%d", shown > 1 ? ", " : "", s[i].rank);
        if (end - i > 1)
            meg_str_printf(out, "-%d", s[end - 1].rank);
    }
}

/*
 * Append the states of the ranks for which is_done is false.  Ranks with equal states are listed together.  At most
 * MAX_LINES different states are appended, and none after MAX_BYTES.  Set is_done for the ranks that were appended.
 */
static void list_states(struct meg_str *out, const struct rank_info *s, bool *is_done, int n)
{
    bool *is_in = meg_new((size_t)n + 1);
    int lines = 0;

    for (int i = 0; i < n; i++) {
        if (is_done[i])
            continue;
        if (lines++ == MAX_LINES || out->n > MAX_BYTES) {
            meg_str_printf(out, "; ...");
            break;
        }
        for (int k = 0; k < n; k++) {
            is_in[k] = !is_done[k] && strcmp(s[k].text, s[i].text) == 0;
            is_done[k] |= is_in[k];
        }
        meg_str_printf(out, "; ");
        list_ranks(out, s, is_in, n);
        meg_str_printf(out, " %s", s[i].text);
    }
    free(is_in);
}

void watchdog_report_lost(struct meg_str *out, const struct watchdog_snapshot *v, const struct watchdog_conn *lost)
{
    char text[STATE_LEN];
    struct rank_info *s;
    const int n = collect_ranks(&s, v);
    bool *is_done = meg_new((size_t)n + 1);

    format_state(text, &lost->state);
    for (int i = 0; i < n; i++)
        is_done[i] = s[i].rank == lost->rank;
    meg_str_printf(out, "rank %d of %d on %s exited or was killed, possibly for lack of memory; its last state: %s",
                   lost->rank, v->size, lost->host, text);
    list_states(out, s, is_done, n);
    free(is_done);
    free(s);
}

void watchdog_report_missing(struct meg_str *out, const bool *has_joined, int n)
{
    struct rank_info *s = meg_new((size_t)n * sizeof *s);
    bool *is_missing = meg_new((size_t)n);

    for (int i = 0; i < n; i++) {
        s[i].rank = i;
        is_missing[i] = !has_joined[i];
    }
    list_ranks(out, s, is_missing, n);
    meg_str_printf(out, " of %d; ", n);
    list_ranks(out, s, has_joined, n);
    meg_str_printf(out, " joined");
    free(is_missing);
    free(s);
}

/*
 * Mark the suspects in is_in.  Suspects are the ranks that did not reply.  If all ranks replied, suspects are the ranks
 * that are not waiting.  Returns the index of the first suspect, or -1.
 */
static int mark_suspects(bool *is_in, const struct rank_info *s, int n)
{
    int count = 0;

    for (int i = 0; i < n; i++)
        count += is_in[i] = s[i].is_stopped;
    for (int i = 0; i < n && !count; i++)
        is_in[i] = !s[i].state.is_waiting;
    for (int i = 0; i < n; i++)
        if (is_in[i])
            return i;
    return -1;
}

static bool all_same_state(const struct rank_info *s, int n)
{
    for (int i = 1; i < n; i++)
        if (strcmp(s[i].text, s[0].text) != 0)
            return false;
    return true;
}

void watchdog_report_timeout(struct meg_str *out, const struct watchdog_snapshot *v)
{
    struct rank_info *s;
    const int n = collect_ranks(&s, v);
    bool *is_in = meg_new((size_t)n + 1);
    const int first = mark_suspects(is_in, s, n);

    if (first < 0) {
        meg_str_printf(out, "no progress for %.1f s: all ranks wait%s", v->timeout_s,
                       all_same_state(s, n)
                           ? " in one operation; the network may be slow or broken, or the machine overloaded"
                           : ", in different operations");
    } else {
        list_ranks(out, s, is_in, n);
        meg_str_printf(out, " of %d on %s ", v->size, s[first].host);
        if (s[first].is_stopped)
            meg_str_printf(out, "sent no heartbeat for %.1f s; last state: %s", s[first].since_heard_s, s[first].text);
        else
            meg_str_printf(out, "did not join an operation within %.1f s; last state: %s", v->timeout_s, s[first].text);
    }
    list_states(out, s, is_in, n);
    meg_str_printf(out, " (--distributed-timeout-minutes sets the limit)");
    free(is_in);
    free(s);
}
