/*
 * memory_check.h - host memory: available on this machine, used by a process, and needed by a run.
 */
#ifndef MEG_PLAN_MEMORY_CHECK_H
#define MEG_PLAN_MEMORY_CHECK_H
#include "comm/comm.h"
#include "run/run_spec.h"

MEG_BEGIN_DECLS

/*
 * Fail with MEG_EFAIL when the ranks of the run on this machine need more memory than it has available.  Every rank of
 * world calls it, before the arenas are allocated.
 */
int meg_memory_check(const struct meg_run_spec *s, struct meg_comm *world, struct meg_err *e);

/* Bytes of a process other than those the cost model counts: program, libraries and the batches read ahead. */
double meg_memory_overhead(const struct meg_run_spec *s);

/* Bytes available on this machine for each of ranks processes. */
double meg_memory_available(int64_t ranks);

/* Resident set size of this process in bytes: now, and its peak. */
double meg_memory_rss(void);
double meg_memory_peak_rss(void);

MEG_END_DECLS
#endif
