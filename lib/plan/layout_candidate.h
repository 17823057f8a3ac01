/* layout_candidate.h - a layout that --plan tries (layout_search.c). */
#ifndef MEG_PLAN_LAYOUT_CANDIDATE_H
#define MEG_PLAN_LAYOUT_CANDIDATE_H
#include <stdio.h>
#include "plan/cost.h"

struct plan_candidate {
    struct meg_layout_conf layout;
    int64_t micro; /* micro-batch size */
    enum meg_recompute recompute;
    double memory; /* bytes of device memory on the rank that needs the most */
    struct meg_cost_time time;
};

/*
 * Return whether there are several data- or context-parallel ranks.  If so, they use the distributed optimizer with
 * overlap of its communication.
 */
bool plan_has_data_parallel(const struct meg_layout_conf *l, int64_t world_size);
/* Print a row of the table of layouts, or the options of a layout. */
void plan_print_candidate(const struct plan_candidate *c, int64_t world_size, FILE *f);
void plan_print_options(const struct plan_candidate *c, int64_t world_size, FILE *f);

#endif
