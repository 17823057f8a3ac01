/* Whether all ranks run the same program with the same options on the same files. */
#ifndef MEG_TRAIN_RANK_CONFIG_CHECK_H
#define MEG_TRAIN_RANK_CONFIG_CHECK_H
#include "base/mem.h"
#include "comm/comm.h"
#include "data/data_splits.h"
#include "option/opt.h"

MEG_BEGIN_DECLS

/*
 * Every rank of world gives lines "name = value".  0 where all give the same.  Else the first rank
 * that differs from most (of two, from rank 0) returns code and a message: itself and its host, the first
 * line that differs, theirs, and rule.  The others do not return, being ended by its meg_die.
 */
int meg_rank_config_check(struct meg_comm *world, const char *lines, int code, const char *rule, struct meg_err *e);

/* The value that most of v [n] have; of two that as many have v[0], or the lower one. */
int64_t meg_majority_value(const int64_t *v, int n);

/* The program and its options, but for those that say where a rank keeps or writes files of its own. */
int meg_rank_config_check_options(struct meg_comm *world, const struct meg_optgroup *groups, struct meg_err *e);

/* Append the line "path = nbytes, XXH3": of all of it up to 16 MiB, else of its ends and 254 places between. */
void meg_rank_config_add_file(struct meg_str *lines, const char *path);

MEG_END_DECLS
#endif
