/* clock.h - a monotonic clock. */
#pragma once

/* Return the time of CLOCK_MONOTONIC in seconds. */
double meg_now_s(void);
