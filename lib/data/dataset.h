/* dataset.h - the dataset of one split: samples of equal length from a file, a blend of files, or mock data. */
#pragma once
#include <stdint.h>
#include "base/err.h"
#include "data/batch.h"

struct meg_dataset;
int64_t meg_dataset_len(const struct meg_dataset *ds);
int64_t meg_dataset_seq_length(const struct meg_dataset *ds);
/* Return the length of the encoder's input (T5), or 0. */
int64_t meg_dataset_enc_length(const struct meg_dataset *ds);

/*
 * meg_dataset_sample - read sample i, in [0, len), as a batch of one sequence
 *   out  the following arrays, which the caller owns; other fields are neither read nor written
 *        all           tokens, labels, position_ids and loss_mask, [seq_length]
 *        GPT           doc_start [seq_length], or NULL
 *        BERT          token_types [seq_length], key_length [1] and sentence_order [1]; each may be NULL
 *        T5            enc_tokens and enc_position_ids [enc_length], enc_key_length [1]
 * The function is thread-safe.
 * Returns MEG_EFORMAT when a token id is outside the vocabulary or the cached index does not match the token file.
 * Returns MEG_EFAIL when sample i of a blend refers to a sample that its dataset does not have.  This error occurs only
 * in Megatron-DeepSpeed's order.  In Megatron-LM's order, meg_data_splits_build detects the error.
 */
int meg_dataset_sample(const struct meg_dataset *ds, int64_t i, struct meg_batch *out, struct meg_err *e);
