/* lr.c - schedules of learning rate and weight decay; lr.h has the formulas. */
#include "optim/lr.h"
#include <math.h>
#include "base/err.h"

static double half_cosine(double r)
{
    return 0.5 * (cos(M_PI * r) + 1.0);
}

static double wsd(const struct meg_lr_schedule *c, int64_t steps)
{
    int64_t start = c->decay - c->wsd_decay;
    double r = (double)(steps - start) / (double)c->wsd_decay;

    if (steps <= start)
        return 1.0;
    switch (c->wsd_style) {
    case MEG_WSD_LINEAR: return 1.0 - r;
    case MEG_WSD_COSINE: return half_cosine(r);
    case MEG_WSD_EXPONENTIAL: return 2.0 * pow(0.5, r) - 1.0;
    }
    MEG_ASSERT(!"unknown WSD decay style");
    return NAN;
}

double meg_lr_at(const struct meg_lr_schedule *c, double max_lr, double min_lr, int64_t steps)
{
    double n = (double)steps, r = (n - c->warmup) / ((double)c->decay - c->warmup), coeff;

    if (c->warmup > 0 && n <= c->warmup)
        return c->init_lr + (max_lr - c->init_lr) * n / c->warmup;
    if (c->style == MEG_LR_CONSTANT)
        return max_lr;
    if (steps > c->decay)
        return min_lr;
    switch (c->style) {
    case MEG_LR_INVERSE_SQUARE_ROOT: return fmax(min_lr, max_lr * sqrt(fmax(c->warmup, 1)) / sqrt(fmax(n, 1)));
    case MEG_LR_LINEAR: coeff = 1.0 - r; break;
    case MEG_LR_COSINE: coeff = half_cosine(r); break;
    case MEG_LR_WSD: coeff = wsd(c, steps); break;
    default: MEG_ASSERT(!"unknown decay style");
    }
    return min_lr + coeff * (max_lr - min_lr);
}

double meg_wd_at(const struct meg_lr_schedule *c, int64_t steps)
{
    double r = (double)steps / (double)c->wd_incr;

    if (c->wd_style == MEG_WD_CONSTANT || steps > c->wd_incr)
        return c->end_wd;
    if (c->wd_style == MEG_WD_COSINE)
        r = half_cosine(1.0 - r);
    return c->start_wd + r * (c->end_wd - c->start_wd);
}
