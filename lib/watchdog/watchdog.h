/*
 * watchdog.h - detection of lost and stuck ranks: a thread in every process exchanges heartbeats over TCP and ends the
 * run when a rank is lost.
 *
 * The thread of rank 0 is the server; the thread of every other rank has one connection to it.  A heartbeat contains
 * the state of its rank: the step, and the collective in which it waits.  The run ends with exit status 69 when
 *   - a connection is closed without WATCHDOG_BYE: the process exited or was killed;
 *   - no heartbeat of a rank arrives for timeout_s, and the rank does not reply to a query: the process or its machine
 *     is stopped;
 *   - a collective takes longer than timeout_s.  The server queries the state of all ranks, and reports the ranks that
 *     do not reply.  If all ranks reply, the server reports the ranks that do not wait in a collective.  Until the
 *     first step is complete, this timeout is at least one minute: some ranks may still be initializing.  The time in
 *     which any rank runs a task (meg_watchdog_task_begin) does not count toward this timeout.
 * The report states the rank, host, step and operation of a rank that is lost or late, and the state of the other
 * ranks.  Rank 0 prints the report.  If rank 0 is lost, the lowest of ranks 1 to 3 that still runs prints the report.
 * After a rank is lost, a launcher sends SIGTERM to the remaining ranks.  These ranks delay the signal, so that the
 * report can be printed first.  A rank that ends by meg_die broadcasts its message and exit status before it ends.  The
 * other ranks exit with that status.
 *
 * The threads make no MPI call.  If a process is stopped (a job suspended by Ctrl-Z), the process does not count this
 * time toward a timeout.  If all ranks share one network namespace, the server listens on loopback only.  A connection
 * must present a token of 16 random bytes, which rank 0 broadcasts over the world communicator.
 *
 * Ranks without a communicator (under torchrun) connect to a rendezvous address instead.  Their token is derived
 * from the run id.  This token keeps out unrelated processes, but not attackers.  Another run with the same port and
 * run id has the same token.  Until all ranks have joined, a process of the other run cannot be distinguished from a
 * rank.  A conflict (two processes with one rank, or different sizes) ends both runs.  Once all ranks have joined, a
 * process of another run is refused, and the run continues.  Control characters in host names that a peer sends are
 * printed as ?.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "watchdog/rendezvous.h"
#include "watchdog/store.h"

/* The watchdog of this process.  The functions below accept a NULL watchdog (none is open) and then do nothing. */
struct meg_watchdog;

/* The ranks to monitor, and the collectives that meg_watchdog_open and meg_watchdog_close call. */
struct meg_watchdog_bootstrap {
    int rank, size;
    double timeout_s;
    const struct meg_rendezvous *rendezvous; /* NULL if the ranks have a communicator, over which the callbacks work */
    void *ctx;                               /* argument of the callbacks */
    void (*all_reduce_max)(void *ctx, int64_t *values, int64_t n);
    void (*broadcast)(void *ctx, void *buf, int64_t nbytes); /* root is rank 0; nbytes is a multiple of 4 */
    void (*barrier)(void *ctx);
    /*
     * Reduce the values [size * nbytes] of the ranks, and store the result [nbytes] at the start of `values`.  Only the
     * monitor thread of rank 0 calls this function.
     */
    void (*reduce)(void *values, const struct meg_store_collective *c);
};

/*
 * Start the watchdog; collective over all ranks.  b is copied.  ctx must stay valid until meg_watchdog_close, and the
 * rendezvous until this function returns.  *w is set before the first callback: waits inside callbacks are monitored.
 * *w is NULL if there is only one rank.
 *
 * Over a communicator: if rank 0 cannot listen, or a rank cannot connect to rank 0, all ranks run without a watchdog.
 * The lowest rank that failed prints a warning.  Only the timeouts of collectives can then detect a lost rank.
 * With a rendezvous: a failure ends the process, with the status of MEG_EPEER if a rank does not connect to
 * rank 0 within timeout_s, or connects to a program that is not rank 0.  The exit status is that of MEG_EUSAGE if
 *   - the host is unknown, or rank 0 cannot listen on the port;
 *   - two processes have the same rank, or a rank was started with a different number of ranks than rank 0;
 *   - the run at that address has another token, or all ranks of that run have already joined.
 */
void meg_watchdog_open(struct meg_watchdog **w, const struct meg_watchdog_bootstrap *b);
/*
 * Stop the thread and free w; collective.  After all ranks have called this function, the exit of a rank is no longer
 * reported.
 */
void meg_watchdog_close(struct meg_watchdog *w);

/* Return whether the watchdog monitors the ranks: w is not NULL, and all ranks have connected to rank 0. */
bool meg_watchdog_is_open(const struct meg_watchdog *w);

/*
 * Set a function that aborts the communication of this process, or NULL.  It is called, by any thread, before the
 * watchdog ends the process, and in meg_watchdog_broadcast_exit.
 */
void meg_watchdog_set_abort(struct meg_watchdog *w, void (*abort)(void));

/* Set the current training step of this rank, which its heartbeats contain. */
void meg_watchdog_set_step(struct meg_watchdog *w, int64_t step);

/*
 * Record that this rank begins to wait in operation `op` of a group, or that the wait has ended.  op_number counts the
 * operations that this rank has started in the group.  The strings are copied.
 */
void meg_watchdog_wait_begin(struct meg_watchdog *w, const char *op, const char *group, int64_t op_number);
void meg_watchdog_wait_end(struct meg_watchdog *w);

/*
 * Record that this rank begins a task that may take longer than timeout_s, or that the task has ended.  While any rank
 * runs a task, no collective times out, but lost and stopped processes are still detected.  `task` completes the
 * sentence "rank 1 is ...", for example "building the index of corpus"; it is copied, and truncated to 95 bytes.  A new
 * task replaces the current one.  Rank 0 logs the task if tasks run for 10 seconds, and then every minute.  If the
 * watchdog is not open, tasks have no effect.
 */
void meg_watchdog_task_begin(struct meg_watchdog *w, const char *task);
void meg_watchdog_task_end(struct meg_watchdog *w);
/* Return whether any rank runs a task.  The result lags behind a change by up to a few heartbeats. */
bool meg_watchdog_task_is_running(struct meg_watchdog *w);

/*
 * Return whether a wait of waited_s seconds may continue although the timeout of its group has expired: the watchdog is
 * open, and its own timeout, which is at least one minute until the first step is complete, has not expired.
 */
bool meg_watchdog_extends_timeout(struct meg_watchdog *w, double waited_s);

/*
 * Block for up to 8 seconds after a collective failed or timed out.  The watchdog prints its report and ends the
 * process.  Return at once if there is no watchdog, and after 8 seconds if the watchdog has nothing to report.
 */
void meg_watchdog_await_report(struct meg_watchdog *w);

/*
 * Make the other ranks exit: send them the exit status of this process and the reason.  Block for up to one second
 * until the monitor thread has sent them.
 */
void meg_watchdog_broadcast_exit(struct meg_watchdog *w, int status, const char *reason);
