/* clock.h - a monotonic clock. */
#ifndef MEG_BASE_CLOCK_H
#define MEG_BASE_CLOCK_H

#include "base/decls.h"

MEG_BEGIN_DECLS

/* Return the seconds since an unspecified time in the past (CLOCK_MONOTONIC). */
double meg_now_s(void);

MEG_END_DECLS

#endif
