/*
 * watchdog.h - detection of lost and stuck ranks: a thread in every process exchanges heartbeats over TCP and ends the
 * run when a rank is lost.
 *
 * The thread of rank 0 is the server; the thread of every other rank holds one connection to it.  They exchange
 * heartbeats with the state of each rank (step, collective that it waits in).  The run ends with exit status 69 when
 *   - a connection is closed without a goodbye: the process exited or was killed;
 *   - no heartbeat arrives for timeout_s: the process or its machine is stopped;
 *   - a collective takes longer than timeout_s: the server asks all ranks for their state and reports those that are
 *     not in the collective.  Until the first step is complete this timeout is at least one minute, because other
 *     ranks may still be setting up.
 * The report names rank, host, step and operation of the suspects, and the state of the others.  Rank 0 prints it; if
 * rank 0 is lost, the next rank does.  All processes exit before a launcher kills them.  A rank that ends by meg_die
 * broadcasts its message and exit status first, and the others exit with that status.
 *
 * The threads make no MPI call.  Time during which a process was itself stopped (a job suspended by Ctrl-Z) counts
 * against no rank.  If all ranks share one network namespace, the server listens on loopback only.  A connection must
 * present a token of 16 random bytes, which rank 0 broadcasts over the world communicator.
 *
 * Ranks without a communicator (those of torchrun) connect to a rendezvous address instead.  Their token is derived
 * from the run id: it rejects unrelated processes, not attackers.  A process of another run that was started with the
 * same port and run id has the same token.  Until all ranks have joined it cannot be distinguished from a rank, and a
 * conflict (two processes with one rank, different sizes) ends both runs; once all have joined it is refused, and the
 * run continues.  Host names that a peer sends are printed with ? for control characters.
 */
#ifndef MEG_WATCHDOG_WATCHDOG_H
#define MEG_WATCHDOG_WATCHDOG_H
#include <stdbool.h>
#include <stdint.h>
#include "base/decls.h"
#include "watchdog/rendezvous.h"

MEG_BEGIN_DECLS

/* The watchdog of this process.  All functions accept NULL (no watchdog) and then do nothing. */
struct meg_watchdog;

/* The ranks to watch, and the collectives over them that opening and closing a watchdog use. */
struct meg_watchdog_bootstrap {
    int rank, size;
    double timeout_s;
    const struct meg_rendezvous *rendezvous; /* NULL: the ranks have a communicator, and the callbacks work */
    void *ctx;                               /* for the callbacks */
    void (*all_reduce_max)(void *ctx, int64_t *values, int64_t n);
    void (*broadcast)(void *ctx, void *buf, int64_t nbytes); /* from rank 0; nbytes is a multiple of 4 */
    void (*barrier)(void *ctx);
};

/*
 * Start the watchdog; collective over all ranks.  b is copied; ctx must stay valid until meg_watchdog_close, and the
 * rendezvous until this function returns.  *w is set before the first callback, so that waits inside callbacks are
 * watched, too; with one rank it is NULL.
 *
 * Over a communicator: if a rank cannot connect to rank 0, all ranks run without a watchdog and that rank prints a
 * warning; lost ranks are then detected only by the timeouts of collectives.
 * With a rendezvous the process ends if it fails: MEG_EPEER names the ranks that did not connect within timeout_s;
 * MEG_EUSAGE reports a port in use, a run that is complete or has another token, or ranks that contradict each other.
 */
void meg_watchdog_open(struct meg_watchdog **w, const struct meg_watchdog_bootstrap *b);
/* Stop the thread and free w; collective.  Once all ranks have called it, the exit of one is no longer reported. */
void meg_watchdog_close(struct meg_watchdog *w);

/* Report that this rank now works on iteration `step`. */
void meg_watchdog_set_step(struct meg_watchdog *w, int64_t step);

/*
 * Report that this rank waits, or has finished waiting, in operation number `op_number` (counted per group) named op of
 * a group.  The strings are copied.
 */
void meg_watchdog_wait_begin(struct meg_watchdog *w, const char *op, const char *group, int64_t op_number);
void meg_watchdog_wait_end(struct meg_watchdog *w);

/* True if a wait of waited_s seconds may continue past its timeout because start-up is still in progress. */
bool meg_watchdog_extends_timeout(struct meg_watchdog *w, double waited_s);

/*
 * Call when a collective has failed or timed out: block for some seconds so that the watchdog can print its report and
 * end the process.  Returns if there is no watchdog or it has nothing to report.
 */
void meg_watchdog_await_report(struct meg_watchdog *w);

/* Send status and reason of this process's exit to the other ranks, which then exit, too. */
void meg_watchdog_broadcast_exit(struct meg_watchdog *w, int status, const char *reason);

MEG_END_DECLS
#endif
