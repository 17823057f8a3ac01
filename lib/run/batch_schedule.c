/* batch_schedule.c - global batch size and its ramp-up. */
#include "run/batch_schedule.h"
#include <inttypes.h>
#include <stdio.h>
#include "base/int64.h"

static int64_t global_at(const struct meg_batch_schedule *p, int64_t consumed)
{
    double levels, samples_per_level;

    if (p->rampup_samples == 0 || consumed > p->rampup_samples || p->global == p->start)
        return p->global;
    levels = (double)((p->global - p->start) / p->increment);
    samples_per_level = (double)p->rampup_samples / levels;
    return p->start + p->increment * (int64_t)((double)consumed / samples_per_level);
}

struct meg_batch_size meg_batch_at(const struct meg_batch_schedule *p, int64_t consumed)
{
    int64_t unit = p->micro * p->dp_size;
    struct meg_batch_size b;

    b.global = global_at(p, consumed);
    b.num_micro = b.global / unit;
    b.effective = b.num_micro * unit;
    return b;
}

/*
 * Check that a global batch size is a multiple of the micro-batch size times the data-parallel size.  With
 * p->round_down, check only that it is at least this product.  Return MEG_EUSAGE if not, with a message that begins
 * with `what` and contains the advice `remedy`.
 */
static int check_level(const struct meg_batch_schedule *p, int64_t global, const char *what, const char *remedy,
                       struct meg_err *e)
{
    int64_t unit = p->micro * p->dp_size;

    if (global < unit || (!p->round_down && global % unit))
        return meg_fail(e, MEG_EUSAGE,
                        "%s %" PRId64 ": must be %s %" PRId64 ", which is --micro-batch-size %" PRId64
                        " times the data-parallel size %" PRId64 "; %s%s",
                        what, global, p->round_down ? "at least" : "a multiple of", unit, p->micro, p->dp_size, remedy,
                        global < unit ? "" : ", or --decrease-batch-size-if-needed to round down");
    return 0;
}

static int check_ramp(const struct meg_batch_schedule *p, struct meg_err *e)
{
    const int64_t unit = p->micro * p->dp_size;
    char remedy[128];
    int r = 0;

    snprintf(remedy, sizeof remedy, "use a START and INCREMENT that are multiples of %" PRId64, unit);
    for (int64_t b = p->start; b < p->global && r == 0; b += p->increment)
        r = check_level(p, b, "--rampup-batch-size, at a global batch size of", remedy, e);
    return r;
}

int meg_batch_schedule_check(const struct meg_batch_schedule *p, struct meg_err *e)
{
    const int64_t unit = p->micro * p->dp_size;
    char remedy[64];
    int r;

    snprintf(remedy, sizeof remedy, "use %" PRId64 ", the nearest multiple",
             unit * meg_max64((p->global + unit / 2) / unit, 1));
    if ((r = check_level(p, p->global, "--global-batch-size", remedy, e)) < 0 || p->rampup_samples == 0)
        return r;
    if (p->start <= 0 || p->increment <= 0 || p->rampup_samples < 0 || p->start > p->global ||
        (p->global - p->start) % p->increment)
        return meg_fail(e, MEG_EUSAGE,
                        "--rampup-batch-size %" PRId64 " %" PRId64 " %" PRId64
                        ": START, INCREMENT and SAMPLES must be above 0, and START plus a multiple of INCREMENT must "
                        "equal --global-batch-size %" PRId64,
                        p->start, p->increment, p->rampup_samples, p->global);
    return check_ramp(p, e);
}

int64_t meg_batch_iterations(const struct meg_batch_schedule *p, int64_t samples)
{
    int64_t n = 0, consumed = 0;

    while (p->rampup_samples && consumed <= p->rampup_samples &&
           consumed + meg_batch_at(p, consumed).effective <= samples) {
        consumed += meg_batch_at(p, consumed).effective;
        n++;
    }
    return n + (samples - consumed) / meg_batch_at(p, consumed).effective;
}
