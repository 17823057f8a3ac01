/*
 * data_splits.h - build the training, validation and test datasets of a run.  The options name the files, and select
 * the sample order of Megatron-LM or Megatron-DeepSpeed.
 * A run first plans its data (meg_gpt_data_plan, or meg_masked_data_plan for BERT and T5).  Planning opens the files
 * and computes the ranges of the splits, but builds no index and writes nothing.  After planning, meg_data_splits_build
 * builds the index arrays.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "base/err.h"
#include "data/blend/data_conf.h"
#include "data/blend/split.h"
#include "data/dataset.h"

/* Settings of the datasets in addition to struct meg_data_conf. */
struct meg_dataset_spec {
    int64_t seq_length;
    int64_t seed;                        /* --seed, in [0, 2^32) */
    int64_t num_samples[MEG_NUM_SPLITS]; /* 0: the split is not opened; MEG_ONE_EPOCH: all samples of one epoch */
    int32_t eod, pad;                    /* token ids; -1 if the tokenizer has none */
    int64_t vocab_size;                  /* exclusive upper bound of the ids; 0: no upper bound */
    const char *tokenizer;               /* description of the tokenizer in cache files: a JSON object, or NULL */
    const char *megatron_release;        /* --megatron-release, or NULL: see tokenizer/megatron_release.h */
};

/*
 * A mid-level dataset (Megatron-LM's term): the range of one file that one split reads.
 * num_taken equals num_samples, with one exception: a weighted blend in the order of Megatron-LM 0.11 or later.  For
 * such a blend, num_samples is num_taken plus the surplus (--mid-level-dataset-surplus).
 */
struct meg_mid_dataset {
    int split;           /* MEG_SPLIT_TRAIN, ... */
    const char *name;    /* prefix as in the option, or "mock data" */
    const char *group;   /* name of the group of Megatron-DeepSpeed, or NULL */
    double weight;       /* normalized weight; 1 / n for n datasets without weights, 1 for one dataset */
    int64_t begin, end;  /* range of elements: sequences for GPT, documents for BERT and T5 */
    int64_t tokens;      /* tokens in that range */
    int64_t num_samples; /* samples to build, or MEG_ONE_EPOCH */
    int64_t num_taken;   /* samples that a weighted blend takes from this dataset, see above */
    int64_t samples;     /* samples in the index, over all epochs; 0 for BERT and T5 */
    int64_t epochs;      /* 0 for BERT and T5 */
};

/*
 * meg_data_splits_build - load the index arrays of all splits from the cache, or build them and try to store them
 *   on_index  called before an index is loaded or built, with `ctx` and the name of the index: `name` of the mid-level
 *             dataset or, for a blend, for example "the train blend"; may be NULL
 * Returns MEG_EFORMAT when a cached blend does not match its datasets, or no document yields a BERT or T5 sample.
 * Returns MEG_EFAIL when a blend takes more samples from a dataset than the dataset has.  In Megatron-DeepSpeed's
 * order, meg_dataset_sample returns this error instead.
 * After a failure, the caller must still close d.
 */
struct meg_data_splits;
int meg_data_splits_build(struct meg_data_splits *d, void (*on_index)(void *ctx, const char *name), void *ctx,
                          struct meg_err *e);
void meg_data_splits_close(struct meg_data_splits *d); /* accepts NULL */

/*
 * meg_data_splits_group - return the dataset of group i of a split, owned by d
 *   name  out  name of the group, owned by d; NULL for data without groups, which are group 0; may be NULL
 * meg_data_splits_dataset - return the dataset of group 0
 * Both return NULL before meg_data_splits_build, for i beyond the last group, for a split without data, and for a split
 * with num_samples 0.
 */
const struct meg_dataset *meg_data_splits_group(const struct meg_data_splits *d, int split, int i, const char **name);
const struct meg_dataset *meg_data_splits_dataset(const struct meg_data_splits *d, int split);

/*
 * Return the mid-level datasets of all splits in order, owned by d, and set *n to their number.  Valid after planning.
 */
const struct meg_mid_dataset *meg_data_splits_mid_datasets(const struct meg_data_splits *d, int *n);
