/* memory_check.h - compare the memory that a run needs with the memory of this machine. */
#pragma once
#include "comm/comm.h"
#include "run/run_spec.h"

/*
 * Return MEG_EFAIL if the tensors of this rank need more memory than its GPU has free or, on the CPU, if the ranks on
 * this machine need more memory than is available.  Return 0 if they do not, or if the available memory is unknown.
 * Collective over world.  Call this function before the arenas are allocated.
 */
int meg_memory_check(const struct meg_run_spec *s, struct meg_comm *world, struct meg_err *e);

/* Return the bytes of a process that the cost model does not count: program, libraries, and the batches of a step. */
double meg_memory_overhead(const struct meg_run_spec *s);

/* Return the available bytes of this machine, divided by `ranks` processes; 0 if unknown. */
double meg_memory_available(int64_t ranks);

/* Return the current and the peak resident set size of this process in bytes; 0 if unknown. */
double meg_memory_rss(void);
double meg_memory_peak_rss(void);
