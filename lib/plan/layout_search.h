/*
 * layout_search.h - the report of --plan: the fastest parallel layouts of a model that fit in memory.
 */
#ifndef MEG_PLAN_LAYOUT_SEARCH_H
#define MEG_PLAN_LAYOUT_SEARCH_H
#include <stdio.h>
#include "run/run_spec.h"

MEG_BEGIN_DECLS

/*
 * Reset the options that --plan chooses: parallel sizes, micro-batch, optimizer sharding and recomputation.  The global
 * batch size becomes one micro-batch per rank of world_size unless it is given.  The options may be unchecked.
 */
void meg_plan_reset_layout(struct meg_train_job *job, int64_t world_size);

/*
 * Print the fastest layouts of world_size ranks for a specification that was made, after meg_plan_reset_layout, for one
 * rank.  MEG_EFAIL when no layout fits in memory.
 */
int meg_plan_print_layouts(const struct meg_run_spec *s, int64_t world_size, FILE *f, struct meg_err *e);

MEG_END_DECLS
#endif
