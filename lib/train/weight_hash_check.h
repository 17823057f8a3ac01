/* Whether copies of a parameter on several ranks are still the same, as they have to be bit for bit. */
#ifndef MEG_TRAIN_WEIGHT_HASH_CHECK_H
#define MEG_TRAIN_WEIGHT_HASH_CHECK_H
#include "base/err.h"

MEG_BEGIN_DECLS

struct meg_trainer;

/*
 * Compare the XXH3 of every weight this rank holds over the ranks that have a copy of it: data- and
 * context-parallel ranks of all, tensor-parallel ranks of what is not cut, first and last stage of a tied
 * embedding.  Every rank calls it.  Where copies differ the first rank that most copies disagree with (of
 * two, the second) returns MEG_EFAIL with its number and the tensor; the others do not return.
 */
int meg_weight_hash_check(const struct meg_trainer *t, struct meg_err *e);

MEG_END_DECLS
#endif
