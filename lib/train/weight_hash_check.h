/*
 * weight_hash_check.h - check that the replicas of each weight are bit-identical.
 */
#ifndef MEG_TRAIN_WEIGHT_HASH_CHECK_H
#define MEG_TRAIN_WEIGHT_HASH_CHECK_H
#include "base/err.h"

MEG_BEGIN_DECLS

struct meg_trainer;

/*
 * Compare the XXH3 hash of every weight of this rank among the ranks that replicate it: data- and context-parallel
 * ranks for all weights, tensor-parallel ranks for unsharded ones, first and last stage for a tied embedding.
 * Collective over all ranks.  When replicas differ, the first rank that differs from the majority of its group (of two
 * replicas, the second) returns MEG_EFAIL with a message that names the rank and the tensor.  The others do not return.
 */
int meg_weight_hash_check(const struct meg_trainer *t, struct meg_err *e);

MEG_END_DECLS
#endif
