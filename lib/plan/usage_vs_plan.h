/* usage_vs_plan.h - memory and communication of a rank, as measured and as predicted by the cost model. */
#pragma once
#include "plan/cost.h"

struct meg_usage_vs_plan {
    double memory[MEG_COST_MEM_ARENAS], memory_planned[MEG_COST_MEM_TYPES]; /* bytes in use, and predicted */
    double comm[MEG_COST_GROUPS], comm_planned[MEG_COST_GROUPS]; /* bytes sent in the last step; 0 if none was run */
};

/*
 * Measured and predicted bytes sent count as equal if they differ by less than this.  The bytes of an all-reduce need
 * not be an integer, and their sums have rounding errors.
 */
#define MEG_USAGE_VS_PLAN_ROUNDING 0.5

/*
 * Set memory_planned and comm_planned for the rank at coordinates `at`.  num_micro is the number of micro-batches in
 * the last step.  If num_micro is 0, no step was run, and comm_planned is not changed.
 */
void meg_usage_vs_plan_predict(struct meg_usage_vs_plan *u, const struct meg_run_spec *s, struct meg_rank_coords at,
                               int64_t num_micro);

/*
 * With -v, log the maxima over the ranks of the measured and of the predicted usage.  start_nbytes is the resident set
 * size before the arenas were allocated.  Collective over world.
 */
void meg_usage_vs_plan_log(const struct meg_usage_vs_plan *u, struct meg_comm *world, double start_nbytes);
