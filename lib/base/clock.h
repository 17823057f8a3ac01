/* clock.h - time that only goes forward. */
#ifndef MEG_BASE_CLOCK_H
#define MEG_BASE_CLOCK_H

#include "base/decls.h"

MEG_BEGIN_DECLS

/* Seconds since a fixed moment in the past, never set back. */
double meg_now_s(void);

MEG_END_DECLS

#endif
