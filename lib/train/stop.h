/*
 * Stopping on request: SIGTERM, SIGUSR1, SIGINT or SIGHUP asks for it.  A second of the first three removes
 * temporary files and locks (file/temporary.h) and ends the process at once.  A second SIGHUP does not, as a terminal
 * that closes often sends two.
 */
#ifndef MEG_TRAIN_STOP_H
#define MEG_TRAIN_STOP_H
#include "base/decls.h"

MEG_BEGIN_DECLS

/*
 * Catch these signals from here on: the first is remembered and does not end the process.  A SIGINT or SIGHUP that is
 * ignored, as under nohup(1), stays ignored.
 */
void meg_stop_catch(void);

/* The signal that asked, or 0. */
int meg_stop_signal(void);

MEG_END_DECLS
#endif
