/* --log-straggler: which rank is the slowest in each phase of a step, its waits for others left out. */
#ifndef MEG_TRAIN_STRAGGLER_H
#define MEG_TRAIN_STRAGGLER_H
#include "comm/comm.h"

MEG_BEGIN_DECLS

enum meg_phase { MEG_PHASE_BATCH, MEG_PHASE_FORWARD_BACKWARD, MEG_PHASE_GRAD_REDUCE, MEG_PHASE_OPTIMIZER, MEG_PHASES };

/* Starts as { 0 }. */
struct meg_straggler {
    double busy_s[MEG_PHASES]; /* since the last report */
    double since_s;            /* the phase under way began, less what was waited by then; 0: none is */
    enum meg_phase phase;
    int64_t steps;
};

/* A phase begins, and the one before ends; the end of a step. */
void meg_straggler_enter(struct meg_straggler *s, enum meg_phase p);
void meg_straggler_end_step(struct meg_straggler *s);

/*
 * Every rank calls it: rank 0 prints on stdout, for each phase, the slowest rank with its host, its
 * milliseconds a step, and the median of all ranks; counting begins anew.
 */
void meg_straggler_report(struct meg_straggler *s, struct meg_comm *world, int64_t iteration);

MEG_END_DECLS
#endif
