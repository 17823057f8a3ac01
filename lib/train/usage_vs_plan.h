/* What a rank of a run took, beside what the planner says of it: bytes by arena and by group. */
#ifndef MEG_TRAIN_USAGE_VS_PLAN_H
#define MEG_TRAIN_USAGE_VS_PLAN_H
#include "plan/cost.h"

MEG_BEGIN_DECLS

struct meg_account {
    double held[MEG_PAPER_ARENAS], held_planned[MEG_PAPER_MEMORIES]; /* the most in use of each arena */
    double sent[MEG_PAPER_GROUPS], sent_planned[MEG_PAPER_GROUPS];   /* in the last step; 0 where there was none */
};

/* Bytes sent are sums of thirds and the like: those that are less apart are equal. */
#define MEG_ACCOUNT_ROUNDING 0.5

MEG_END_DECLS
#endif
