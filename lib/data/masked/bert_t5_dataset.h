/* bert_t5_dataset.h - the training, validation and test data of a BERT or T5 run. */
#pragma once
#include "data/blend/data_splits.h"
#include "data/masked/bert_t5_sample.h"

/*
 * meg_masked_data_plan - open the files that conf names, and compute the splits (data/blend/data_splits.h)
 *   conf   names token datasets with one sequence for each sentence; a split reads a range of their documents
 *   spec   seq_length is the length of a BERT sample or of the input of the T5 encoder
 *   masked, vocab  copied; the arrays of vocab are borrowed until the data are closed
 * Returns MEG_EUSAGE if a setting is out of range or the vocabulary lacks a required special token.  Other errors are
 * those of meg_gpt_data_plan.  On failure, *out is unchanged.
 */
int meg_masked_data_plan(struct meg_data_splits **out, const struct meg_data_conf *conf,
                         const struct meg_dataset_spec *spec, const struct meg_masked_conf *masked,
                         const struct meg_masked_vocab *vocab, struct meg_err *e);
