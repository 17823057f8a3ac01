/* The data of a GPT run. */
#ifndef MEG_DATA_GPT_DATA_H
#define MEG_DATA_GPT_DATA_H

#include "data/data_splits.h"

/*
 * meg_gpt_data_plan - the plan that data/data_splits.h speaks of
 * meg_gpt_data_open - and the index arrays
 * Errors as there; *out is then untouched.  conf and need are copied from.
 */
int meg_gpt_data_plan(struct meg_data_splits **out, const struct meg_data_conf *conf,
                      const struct meg_dataset_spec *spec, struct meg_err *e);
int meg_gpt_data_open(struct meg_data_splits **out, const struct meg_data_conf *conf,
                      const struct meg_dataset_spec *spec, struct meg_err *e);

#endif
