#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "watchdog/internal.h"

enum { WORDS = 160, LINES = 6, MOST = 1800 }; /* of a place; of a list; bytes of a message */

/* What is known of a rank, whether it is a link's or our own. */
struct seat {
    int rank;
    const char *host;
    struct watchdog_rank_state place;
    bool is_silent;
    double silent_s;
    char words[WORDS];
};

static void format_state(char *out, const struct watchdog_rank_state *p)
{
    char step[40] = "before the first step";

    if (p->step >= 0)
        snprintf(step, sizeof step, "at step %lld", (long long)p->step);
    if (p->is_waiting)
        snprintf(out, WORDS, "%s, waiting in %.*s %lld of group %.*s", step, (int)sizeof p->what, p->what,
                 (long long)p->number, (int)sizeof p->group, p->group);
    else
        snprintf(out, WORDS, "%s, not waiting for others", step);
}

static int by_rank(const void *x, const void *y)
{
    return ((const struct seat *)x)->rank - ((const struct seat *)y)->rank;
}

/* All ranks that are known of, in order. */
static int collect_ranks(struct seat **out, const struct watchdog_snapshot *v)
{
    struct seat *s = meg_new(((size_t)v->nlinks + 1) * sizeof *s);
    int n = 0;

    s[n++] = (struct seat){ .rank = v->rank, .host = v->host, .place = v->mine };
    for (int i = 0; i < v->nlinks; i++) {
        const struct watchdog_conn *l = &v->link[i];

        if (l->rank >= 0 && !l->has_left)
            s[n++] = (struct seat){ .rank = l->rank,
                                    .host = l->host,
                                    .place = l->place,
                                    .is_silent = !l->has_answered,
                                    .silent_s = l->silent_s };
    }
    for (int i = 0; i < n; i++)
        format_state(s[i].words, &s[i].place);
    qsort(s, (size_t)n, sizeof *s, by_rank);
    *out = s;
    return n;
}

/* "rank 3", "ranks 0, 2-5": the ranks of s that are marked. */
static void list_ranks(struct meg_str *out, const struct seat *s, const bool *is_in, int n)
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

/* Who is where, ranks of the same place together; those marked done are left out. */
static void list_states(struct meg_str *out, const struct seat *s, bool *is_done, int n)
{
    bool *is_in = meg_new((size_t)n + 1);
    int lines = 0;

    for (int i = 0; i < n; i++) {
        if (is_done[i])
            continue;
        if (lines++ == LINES || out->n > MOST) {
            meg_str_printf(out, "; ...");
            break;
        }
        for (int k = 0; k < n; k++) {
            is_in[k] = !is_done[k] && !strcmp(s[k].words, s[i].words);
            is_done[k] |= is_in[k];
        }
        meg_str_printf(out, "; ");
        list_ranks(out, s, is_in, n);
        meg_str_printf(out, " %s", s[i].words);
    }
    free(is_in);
}

void watchdog_report_lost(struct meg_str *out, const struct watchdog_snapshot *v, const struct watchdog_conn *gone)
{
    char words[WORDS];
    struct seat *s;
    const int n = collect_ranks(&s, v);
    bool *is_done = meg_new((size_t)n + 1);

    format_state(words, &gone->place);
    for (int i = 0; i < n; i++)
        is_done[i] = s[i].rank == gone->rank;
    meg_str_printf(out, "rank %d of %d on %s is gone (killed, or out of memory?), last heard of %s", gone->rank,
                   v->size, gone->host, words);
    list_states(out, s, is_done, n);
    free(is_done);
    free(s);
}

void watchdog_report_missing(struct meg_str *out, const bool *has_come, int n)
{
    struct seat *s = meg_new((size_t)n * sizeof *s);
    bool *is_absent = meg_new((size_t)n);

    for (int i = 0; i < n; i++) {
        s[i].rank = i;
        is_absent[i] = !has_come[i];
    }
    list_ranks(out, s, is_absent, n);
    meg_str_printf(out, " of %d; ", n);
    list_ranks(out, s, has_come, n);
    meg_str_printf(out, " came");
    free(is_absent);
    free(s);
}

/* Mark who is to blame: the silent; if none is, those who do not wait. */
static int blame(bool *is_in, const struct seat *s, int n)
{
    int count = 0;

    for (int i = 0; i < n; i++)
        count += is_in[i] = s[i].is_silent;
    for (int i = 0; i < n && !count; i++)
        is_in[i] = !s[i].place.is_waiting;
    for (int i = 0; i < n; i++)
        if (is_in[i])
            return i;
    return -1;
}

static bool all_same_state(const struct seat *s, int n)
{
    for (int i = 1; i < n; i++)
        if (strcmp(s[i].words, s[0].words))
            return false;
    return true;
}

void watchdog_report_timeout(struct meg_str *out, const struct watchdog_snapshot *v)
{
    struct seat *s;
    const int n = collect_ranks(&s, v);
    bool *is_in = meg_new((size_t)n + 1);
    const int first = blame(is_in, s, n);

    if (first < 0) {
        meg_str_printf(out, "waited %.1f s: every rank waits for others%s", v->deadline_s,
                       all_same_state(s, n) ? ", and data do not move: a slow or broken network, or too much other work"
                                            : ", not in the same operation");
    } else {
        list_ranks(out, s, is_in, n);
        meg_str_printf(out, " of %d on %s ", v->size, s[first].host);
        if (s[first].is_silent)
            meg_str_printf(out, "gave no sign of life for %.1f s, last heard of %s", s[first].silent_s, s[first].words);
        else
            meg_str_printf(out, "did not come within %.1f s, being %s", v->deadline_s, s[first].words);
    }
    list_states(out, s, is_in, n);
    meg_str_printf(out, " (--distributed-timeout-minutes sets how long to wait)");
    free(is_in);
    free(s);
}
