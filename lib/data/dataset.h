/* Samples of a split: one dataset of fixed length, whether a file, made up, or a blend of several. */
#ifndef MEG_DATA_DATASET_H
#define MEG_DATA_DATASET_H

#include <stdint.h>

#include "base/err.h"

/*
 * A sample, in buffers of the caller's, each [s] and written whole.
 *   tokens        ids in [0, vocabulary); padding is 0
 *   labels        the token after each
 *   loss_mask     1, or 0 where the label is padding and, with eod_mask_loss, where the token is eod
 *   position_ids  0..s-1; with reset_position_ids from 0 again after each eod
 *   doc_start     first key each query may see, besides causality: 0, or with reset_attention_mask the
 *                 token after the last eod before it
 */
struct meg_sample {
    int32_t *tokens, *labels;
    float *loss_mask;
    int32_t *position_ids, *doc_start;
};

struct meg_dataset;
int64_t meg_dataset_len(const struct meg_dataset *ds);
int64_t meg_dataset_seq_length(const struct meg_dataset *ds);

/*
 * meg_dataset_sample - sample i, in [0, len).  Any number of threads may call it at once.
 * MEG_EFORMAT when an id is outside of the vocabulary, or an index file names what is not there.
 * MEG_EFAIL when a blend in Megatron-DeepSpeed's order runs past one of its datasets.
 */
int meg_dataset_sample(const struct meg_dataset *ds, int64_t i, struct meg_sample *out, struct meg_err *e);

#endif
