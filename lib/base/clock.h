/* clock.h - time that only goes forward. */
#ifndef MEG_BASE_CLOCK_H
#define MEG_BASE_CLOCK_H

#include <time.h>

/* Seconds since some fixed moment of this machine's run. */
static inline double meg_now_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

#endif
