/*
 * stop.h - stop a run on SIGTERM, SIGUSR1, SIGINT or SIGHUP, after the current iteration.  A second signal other than
 * SIGHUP removes temporary files and locks (file/temporary.h) and ends the process at once.  (A closing terminal often
 * sends SIGHUP twice.)
 */
#pragma once

/*
 * Catch SIGTERM, SIGUSR1, SIGINT and SIGHUP from now on.  The first signal is only recorded.  After
 * it, SIGTERM, SIGUSR1 or SIGINT removes the temporary files and ends the process.  A SIGINT or SIGHUP that is ignored,
 * as under nohup(1), stays ignored.
 */
void meg_stop_catch(void);

/* Return the last signal that was caught, or 0. */
int meg_stop_signal(void);
