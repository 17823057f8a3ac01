/* Stopping on request: SIGTERM or SIGUSR1 asks, a second one of either ends the process at once. */
#ifndef MEG_TRAIN_STOP_H
#define MEG_TRAIN_STOP_H
#include "base/decls.h"

MEG_BEGIN_DECLS

/* From here on the first of the two signals is remembered instead of ending the process. */
void meg_stop_catch(void);

/* The signal that asked, or 0. */
int meg_stop_asked(void);

MEG_END_DECLS
#endif
