/*
 * weight_hash_check.h - check that the replicas of each weight are bit-identical.
 */
#ifndef MEG_TRAIN_WEIGHT_HASH_CHECK_H
#define MEG_TRAIN_WEIGHT_HASH_CHECK_H
#include "base/err.h"

struct meg_trainer;

/*
 * Compare the XXH3 hashes of replicated weights: of all weights over their data-parallel group, of unsharded weights
 * over the tensor-parallel ranks, of tied parameters over the pipeline stages that use them.  Collective over all
 * ranks.
 *
 * If replicas differ, the lowest rank that differs from the majority of its group (of two replicas, the second) returns
 * MEG_EFAIL, with a message that names the rank and the tensor.  The other ranks do not return.
 */
int meg_weight_hash_check(const struct meg_trainer *t, struct meg_err *e);

#endif
