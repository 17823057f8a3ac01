/*
 * memory_check.h - the memory check before a run: host memory that is available, used by a process, and needed by a
 * run.
 */
#ifndef MEG_PLAN_MEMORY_CHECK_H
#define MEG_PLAN_MEMORY_CHECK_H
#include "comm/comm.h"
#include "run/run_spec.h"

MEG_BEGIN_DECLS

/*
 * Return MEG_EFAIL if the ranks on this machine need more memory than is available, and 0 if the available memory is
 * unknown.  Collective over world; call it before the arenas are allocated.
 */
int meg_memory_check(const struct meg_run_spec *s, struct meg_comm *world, struct meg_err *e);

/*
 * Return the bytes of a process's memory that the cost model does not count: program, libraries and the batches read
 * ahead.
 */
double meg_memory_overhead(const struct meg_run_spec *s);

/* Return the bytes of memory available on this machine to each of `ranks` processes; 0 if unknown. */
double meg_memory_available(int64_t ranks);

/* Return the current and the peak resident set size of this process in bytes. */
double meg_memory_rss(void);
double meg_memory_peak_rss(void);

MEG_END_DECLS
#endif
