/* gpt_data.h - the training, validation and test data of a GPT run. */
#pragma once
#include "data/blend/data_splits.h"

/*
 * meg_gpt_data_plan - open the files that conf names and compute the range and sample count of each split
 * conf and spec are borrowed for the call.  On failure, *out is unchanged.  Returns
 *   MEG_EUSAGE   when options contradict each other, a value is out of range, or the range of a split has no tokens
 *   MEG_EFORMAT  when a file is damaged or has no tokens, or when MEG_ONE_EPOCH is requested and the range of a split
 *                has too few tokens for one sample; for other sample counts, such a range is repeated
 *   MEG_ENOENT   when a file is missing
 *   MEG_EIO      when a file cannot be read
 */
int meg_gpt_data_plan(struct meg_data_splits **out, const struct meg_data_conf *conf,
                      const struct meg_dataset_spec *spec, struct meg_err *e);
