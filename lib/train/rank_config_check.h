/*
 * rank_config_check.h - check that all ranks run the same program with the same options on the same files.
 */
#ifndef MEG_TRAIN_RANK_CONFIG_CHECK_H
#define MEG_TRAIN_RANK_CONFIG_CHECK_H
#include "base/mem.h"
#include "comm/comm.h"
#include "data/data_splits.h"
#include "option/opt.h"

MEG_BEGIN_DECLS

/*
 * Compare lines "name = value" over all ranks of world.  Returns 0 when they are equal.  Otherwise the first rank whose
 * lines differ from the most frequent ones (meg_majority_value) returns `code`; its message contains both values of the
 * first line that differs, and the text `rule`.  The other ranks do not return: they wait until the meg_die of that
 * rank ends them.
 */
int meg_rank_config_check(struct meg_comm *world, const char *lines, int code, const char *rule, struct meg_err *e);

/*
 * Return the most frequent of n values.  On a tie, return v[0] if it is one of the most frequent values, else the
 * lowest of them.
 */
int64_t meg_majority_value(const int64_t *v, int n);

/* Check that the program and its options are equal on all ranks, except file names that may differ between ranks. */
int meg_rank_config_check_options(struct meg_comm *world, const struct meg_optgroup *groups, struct meg_err *e);

/* Append "path = nbytes, XXH3 hash".  For a file larger than 16 MiB, 256 samples of 4 KiB are hashed. */
void meg_rank_config_add_file(struct meg_str *lines, const char *path);

MEG_END_DECLS
#endif
