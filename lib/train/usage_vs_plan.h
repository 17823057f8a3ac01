/* What a rank of a run took, beside what the planner says of it: bytes by arena and by group. */
#ifndef MEG_TRAIN_USAGE_VS_PLAN_H
#define MEG_TRAIN_USAGE_VS_PLAN_H
#include "plan/cost.h"

MEG_BEGIN_DECLS

struct meg_usage_vs_plan {
    double held[MEG_COST_MEM_ARENAS], held_planned[MEG_COST_MEM_TYPES]; /* the most in use of each arena */
    double sent[MEG_COST_GROUPS], sent_planned[MEG_COST_GROUPS];        /* in the last step; 0 where there was none */
};

/* Bytes sent are sums of thirds and the like: those that are less apart are equal. */
#define MEG_USAGE_VS_PLAN_ROUNDING 0.5

MEG_END_DECLS
#endif
