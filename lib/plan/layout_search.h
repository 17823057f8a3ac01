/* layout_search.h - the report of --plan: the fastest of the parallel layouts in which a model fits in memory. */
#pragma once
#include <stdio.h>
#include "run/run_spec.h"

/*
 * Reset the options that --plan chooses: parallel sizes, micro-batch size, optimizer sharding and recomputation.  If
 * the global batch size is not given, first set it to world_size times the micro-batch size.  The options need not be
 * valid.
 */
void meg_plan_reset_layout(struct meg_train_job *job, int64_t world_size);

/*
 * Print the fastest layouts of world_size ranks.  The specification must be one for a single rank, made after
 * meg_plan_reset_layout.  Return MEG_EFAIL if no layout is valid and fits in memory.
 */
int meg_plan_print_layouts(const struct meg_run_spec *s, int64_t world_size, FILE *f, struct meg_err *e);
