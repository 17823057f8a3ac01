/*
 * The training, validation and test data of a run: from what the options name to three datasets of
 * samples, in Megatron-LM's order.  Which samples: data/gpt_data.h.
 */
#ifndef MEG_DATA_DATA_SPLITS_H
#define MEG_DATA_DATA_SPLITS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "data/data_conf.h"
#include "data/dataset.h"
#include "data/split.h"

/* What the run brings to the data options. */
struct meg_dataset_spec {
    int64_t seq_length;
    int64_t seed;                        /* --seed, in [0, 2^32) */
    int64_t num_samples[MEG_NUM_SPLITS]; /* samples; 0: the split is not opened; MEG_ONE_EPOCH: all */
    int32_t eod, pad;                    /* ids, -1 where the tokenizer has none */
    int64_t vocab_size;                  /* ids must be below; 0: not checked */
    const char *tokenizer;               /* what it calls itself in cache files, a JSON object; or NULL */
    const char *megatron_release;        /* --megatron-release, or NULL: tokenizer/megatron_release.h */
};

/* One file's part in one split, as --dry-run shows it. */
struct meg_mid_dataset {
    int split;           /* MEG_SPLIT_TRAIN, ... */
    const char *name;    /* its prefix as given, or "mock data" */
    double weight;       /* of the blend, normalised; 1 when alone */
    int64_t begin, end;  /* its elements: sequences; of BERT and T5 documents */
    int64_t tokens;      /* in those */
    int64_t num_samples; /* samples, or MEG_ONE_EPOCH */
    int64_t num_taken;   /* those that a weighted blend takes of them; of other parts the same */
    int64_t samples;     /* what the epochs hold */
    int64_t epochs;
};

/*
 * A run's data begin as a plan, which opened every file and worked out its part, built no index and
 * wrote nothing.
 * meg_data_splits_build - the index arrays, from the cache where they are there, else built and kept there
 * MEG_EUSAGE when options contradict each other or a split rounds to nothing, MEG_EFORMAT when a file
 * is wrong or has too little for one sample, MEG_ENOENT when one is missing; build leaves d to be
 * closed.
 */
struct meg_data_splits;
int meg_data_splits_build(struct meg_data_splits *d, struct meg_err *e);
void meg_data_splits_close(struct meg_data_splits *d); /* accepts NULL */

/* NULL where nothing was wanted of the split or the options give it no data.  d's. */
const struct meg_dataset *meg_data_splits_dataset(const struct meg_data_splits *d, int split);

/* Parts of all splits in order; *n of them.  Valid from plan on.  d's. */
const struct meg_mid_dataset *meg_data_splits_mid_datasets(const struct meg_data_splits *d, int *n);

#endif
