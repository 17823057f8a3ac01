/*
 * straggler.h - find the slowest rank in each phase of a step, not counting waits for other ranks (--log-straggler).
 */
#pragma once
#include "comm/comm.h"

enum meg_phase { MEG_PHASE_BATCH, MEG_PHASE_FORWARD_BACKWARD, MEG_PHASE_GRAD_REDUCE, MEG_PHASE_OPTIMIZER, MEG_PHASES };

/* Initialize with { 0 }. */
struct meg_straggler {
    double busy_s[MEG_PHASES]; /* seconds in each phase since the last report, without waits for other ranks */
    double phase_start_s;      /* busy time (clock minus waits) at the start of the current phase; 0 between steps */
    enum meg_phase phase;
    int64_t steps;
};

/* Begin phase p, which ends the previous phase.  meg_straggler_end_step ends the last phase of a step. */
void meg_straggler_enter(struct meg_straggler *s, enum meg_phase p);
void meg_straggler_end_step(struct meg_straggler *s);

/*
 * Print the slowest rank of each phase on rank 0's stdout, with its host, its milliseconds per step and the median of
 * all ranks.  Reset the counters.  Collective over world.
 */
void meg_straggler_report(struct meg_straggler *s, struct meg_comm *world, int64_t iteration);
