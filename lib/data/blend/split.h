/* split.h - divide a dataset into training, validation and test splits, and count the samples that a run requires. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "base/err.h"

enum { MEG_SPLIT_TRAIN, MEG_SPLIT_VALID, MEG_SPLIT_TEST, MEG_NUM_SPLITS };
extern const char *const meg_split_names[MEG_NUM_SPLITS]; /* "train", "valid", "test" */

/* Megatron-LM's split matrix: the range of each split, as fractions of the dataset. */
struct meg_split_matrix {
    double begin[MEG_NUM_SPLITS], end[MEG_NUM_SPLITS]; /* the last end may differ from 1 by one ulp */
    bool is_present[MEG_NUM_SPLITS];
    double ratio[MEG_NUM_SPLITS]; /* numbers of --split, divided by their sum */
    bool is_deepspeed;            /* round the size of each split instead of its boundaries */
};

/*
 * meg_split_parse - parse the value of --split: up to three plain decimal numbers, separated by blanks or by any
 * punctuation except a sign, which may also enclose them.  Missing numbers are 0; only the ratios of the numbers
 * matter.  Returns MEG_EUSAGE for other text, and if the sum is 0 or overflows.
 */
int meg_split_parse(struct meg_split_matrix *s, const char *text, struct meg_err *e);

/*
 * meg_split_range - compute which elements [*begin, *end) of n elements belong to a split
 * The boundaries are rounded half to even.  With is_deepspeed, the sizes of the splits are rounded instead.  Their sum
 * minus n, which may be negative, is then subtracted from each boundary after the first; a negative boundary becomes 0.
 * The range of an absent split is empty.
 */
void meg_split_range(const struct meg_split_matrix *s, int split, int64_t n, int64_t *begin, int64_t *end);

/*
 * Compute the range of n elements from fraction[0] * n to fraction[1] * n, each rounded half to even.  *end is at most
 * n.
 */
void meg_fraction_range(const double fraction[2], int64_t n, int64_t *begin, int64_t *end);

/*
 * meg_sample_counts - compute how many samples a run reads from each split
 *   train_samples  number of training samples, or -1 for train_iters * global_batch
 *   eval_interval  training iterations between two validations, > 0; one more validation follows the training
 *   eval_iters     iterations of each validation and of the test
 */
void meg_sample_counts(int64_t num_samples[MEG_NUM_SPLITS], int64_t train_samples, int64_t train_iters,
                       int64_t eval_interval, int64_t eval_iters, int64_t global_batch);
