/* clock.h - a monotonic clock. */
#ifndef MEG_BASE_CLOCK_H
#define MEG_BASE_CLOCK_H

/* Return the time of CLOCK_MONOTONIC in seconds. */
double meg_now_s(void);

#endif
