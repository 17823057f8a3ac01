/* The data of a BERT or T5 run. */
#ifndef MEG_DATA_MASKED_BERT_T5_DATASET_H
#define MEG_DATA_MASKED_BERT_T5_DATASET_H

#include "data/data_splits.h"
#include "data/masked/bert_t5_sample.h"

/*
 * meg_masked_data_open - the data that data/data_splits.h speaks of, built; samples and epochs of its parts are 0
 *   conf   its files have a sequence for each sentence; splits share out documents
 *   need   seq_length is that of a BERT sample, or of what the T5 encoder reads
 *   masked, vocab  copied; what vocab points to is borrowed until the data are closed
 * Errors as there, and MEG_EUSAGE for numbers that make no sense, or a vocabulary without an id that
 * is needed; *out is then untouched.
 */
int meg_masked_data_open(struct meg_data_splits **out, const struct meg_data_conf *conf,
                         const struct meg_dataset_spec *spec, const struct meg_masked_conf *masked,
                         const struct meg_masked_vocab *vocab, struct meg_err *e);

#endif
