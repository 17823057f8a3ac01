/* straggler.c - find the slowest rank in each phase of a step, not counting waits for other ranks (--log-straggler). */
#include "train/straggler.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/mem.h"

/* Return the current time minus the time that this rank has waited for others. */
static double busy_now_s(void)
{
    return meg_now_s() - meg_comm_waited_s();
}

void meg_straggler_end_step(struct meg_straggler *s)
{
    s->busy_s[s->phase] += busy_now_s() - s->phase_start_s;
    s->steps++;
    s->phase_start_s = 0;
}

void meg_straggler_enter(struct meg_straggler *s, enum meg_phase p)
{
    const double now = busy_now_s();

    if (s->phase_start_s != 0)
        s->busy_s[s->phase] += now - s->phase_start_s;
    s->phase = p;
    s->phase_start_s = now;
}

static int by_size(const void *x, const void *y)
{
    const double a = *(const double *)x, b = *(const double *)y;

    return (a > b) - (a < b);
}

/*
 * Return the slowest of n ranks in a phase; set *ms to the time of that rank and *median to the median over all ranks.
 */
static int slowest(const double *all, int n, int phase, double *ms, double *median)
{
    double *one = meg_new((size_t)n * sizeof *one);
    int rank = 0;

    for (int i = 0; i < n; i++) {
        one[i] = all[i * MEG_PHASES + phase];
        if (one[i] > one[rank])
            rank = i;
    }
    *ms = one[rank];
    qsort(one, (size_t)n, sizeof *one, by_size);
    *median = one[n / 2];
    free(one);
    return rank;
}

void meg_straggler_report(struct meg_straggler *s, struct meg_comm *world, int64_t iteration)
{
    static const char *const name[] = { "batch", "forward-backward", "gradient reduction", "optimizer" };
    double own_ms[MEG_PHASES], *all = meg_new((size_t)world->size * sizeof own_ms);
    struct meg_str line = { 0 };

    for (int p = 0; p < MEG_PHASES; p++)
        own_ms[p] = s->steps ? s->busy_s[p] / (double)s->steps * 1e3 : 0;
    meg_host_all_gather(world, all, own_ms, MEG_PHASES, MEG_DTYPE_F64);
    meg_str_printf(&line, " slowest ranks to iteration %8" PRId64 " (ms a step, median) |", iteration);
    for (int p = 0; p < MEG_PHASES; p++) {
        double ms, median;
        char host[64] = "";
        const int rank = slowest(all, world->size, p, &ms, &median);

        if (world->rank == rank)
            gethostname(host, sizeof host - 1);
        meg_host_broadcast(world, host, sizeof host / sizeof(int32_t), MEG_DTYPE_I32, rank);
        meg_str_printf(&line, " %s: %d on %s %.1f, %.1f |", name[p], rank, host, ms, median);
    }
    meg_str_printf(&line, "\n");
    if (world->rank == 0)
        meg_write_stdout(line.s, line.n, NULL); /* as in the logger, meg_close_stdout reports a failure */
    meg_str_free(&line);
    free(all);
    memset(s, 0, sizeof *s);
}
