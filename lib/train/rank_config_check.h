/*
 * rank_config_check.h - check that all ranks run the same program with the same options on the same files.
 */
#pragma once
#include "base/mem.h"
#include "comm/comm.h"
#include "data/blend/data_splits.h"
#include "option/opt.h"

/*
 * Check that `lines`, a text with one "name = value" per line, is equal on all ranks of world.  If the texts are equal,
 * return 0.  Otherwise, the lowest rank with a text other than the most frequent one (meg_majority_value) returns
 * `code`, with a message that contains both values of the first line that differs, and the text `rule`.  The other
 * ranks do not return: they wait until the failing rank's meg_die ends them.
 */
int meg_rank_config_check(struct meg_comm *world, const char *lines, int code, const char *rule, struct meg_err *e);

/*
 * Return the most frequent of n values.  On a tie, return v[0] if v[0] is one of the most frequent values, else the
 * lowest most frequent value.
 */
int64_t meg_majority_value(const int64_t *v, int n);

/*
 * Check that all ranks run the same program with the same options.  Options that name a cache or log files may differ.
 * If ranks differ, fail as meg_rank_config_check does, with MEG_EUSAGE.
 */
int meg_rank_config_check_options(struct meg_comm *world, const struct meg_optgroup *groups, struct meg_err *e);

/*
 * Append the line "PATH = SIZE bytes, XXH3 HASH", or "PATH = missing" if the file cannot be read.  For a file larger
 * than 16 MiB, HASH covers 256 samples of 4 KiB.
 */
void meg_rank_config_add_file(struct meg_str *lines, const char *path);
