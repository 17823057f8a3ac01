/*
 * data_group.h - parse Megatron-DeepSpeed's dataset groups, the values of --train-weighted-split-paths,
 * --valid-weighted-split-paths and --test-weighted-split-paths.
 */
#pragma once
#include "base/err.h"
#include "data/blend/data_conf.h"

/*
 * meg_data_parse_group - parse "NAME: WEIGHT BEGIN:END PREFIX, ..."
 *   b       zeroed before the call; the caller frees the arrays of b, even after a failure
 *   origin  option or file that contains `text`, for messages
 * meg_data_parse_group_file - append to the blends of a split the groups in a file, each in double quotes
 * Both functions return MEG_EUSAGE for an invalid group.  meg_data_parse_group_file also returns MEG_EUSAGE if the file
 * is empty, and MEG_EFORMAT if a group is not in double quotes or the file has a zero byte.  It also returns the errors
 * of meg_read_text.
 */
int meg_data_parse_group(struct meg_data_blend *b, const char *text, const char *origin, struct meg_err *e);
int meg_data_parse_group_file(struct meg_data_blends *b, int split, const char *path, struct meg_err *e);
