/* Which part of a dataset is for training, validation and test, and how many samples each needs. */
#ifndef MEG_DATA_SPLIT_H
#define MEG_DATA_SPLIT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

enum { MEG_SPLIT_TRAIN, MEG_SPLIT_VALID, MEG_SPLIT_TEST, MEG_NUM_SPLITS };
extern const char *const meg_split_names[MEG_NUM_SPLITS]; /* "train", "valid", "test" */

struct meg_split_matrix {
    double begin[MEG_NUM_SPLITS], end[MEG_NUM_SPLITS]; /* fractions; end of the last may miss 1 by an ulp */
    bool is_present[MEG_NUM_SPLITS];
    double ratio[MEG_NUM_SPLITS];
    bool is_deepspeed; /* shares are rounded, and not where they end */
};

/*
 * meg_split_parse - read --split: plain decimal numbers between commas, slashes or blanks; three at most,
 * missing ones are 0, only their ratios count.  MEG_EUSAGE otherwise.
 */
int meg_split_parse(struct meg_split_matrix *s, const char *text, struct meg_err *e);

/* Elements [*begin, *end) of n that are split which's: boundaries round half to even (with is_deepspeed
 * the shares do, and what that is off by is taken from every boundary but the first).  Empty where the
 * split is absent. */
void meg_split_range(const struct meg_split_matrix *s, int split, int64_t n, int64_t *begin, int64_t *end);

/* The elements between two fractions of n, in the same rounding. */
void meg_fraction_range(const double fraction[2], int64_t n, int64_t *begin, int64_t *end);

/*
 * meg_sample_counts - samples a run takes from each split
 *   train_samples  as given, or -1: train_iters * global_batch
 *   eval_interval  > 0; validation runs once each interval, and once more after training
 */
void meg_sample_counts(int64_t num_samples[MEG_NUM_SPLITS], int64_t train_samples, int64_t train_iters,
                       int64_t eval_interval, int64_t eval_iters, int64_t global_batch);

#endif
