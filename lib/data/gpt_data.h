/*
 * The training, validation and test data of a GPT run: from what the options name to three datasets
 * of samples, in Megatron-LM's order.
 */
#ifndef MEG_DATA_GPT_DATA_H
#define MEG_DATA_GPT_DATA_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "data/data_conf.h"
#include "data/dataset.h"
#include "data/split.h"

/* What the run brings to the data options. */
struct meg_data_need {
    int64_t seq_length;
    int64_t seed;               /* --seed, in [0, 2^32) */
    int64_t wanted[MEG_SPLITS]; /* samples; 0: the split is not opened; MEG_ONE_EPOCH: all */
    int32_t eod, pad;           /* ids, -1 where the tokenizer has none */
    int64_t vocab_size;         /* ids must be below; 0: not checked */
    const char *tokenizer;      /* what it calls itself in cache files, a JSON object; or NULL */
};

/* One file's part in one split, as --dry-run shows it. */
struct meg_data_part {
    int split;          /* MEG_TRAIN, ... */
    const char *name;   /* its prefix as given, or "mock data" */
    double weight;      /* of the blend, normalised; 1 when alone */
    int64_t begin, end; /* its sequences */
    int64_t tokens;     /* in those */
    int64_t wanted;     /* samples, or MEG_ONE_EPOCH */
    int64_t samples;    /* what the epochs hold */
    int64_t epochs;
};

/*
 * meg_gpt_data_plan - open every file and work out its part; no index is built, nothing written
 * meg_gpt_data_build - the index arrays, from the cache where they are there, else built and kept there
 * meg_gpt_data_open - both
 * MEG_EUSAGE when options contradict each other or a split rounds to nothing, MEG_EFORMAT when a file
 * is wrong or has fewer tokens than one sample, MEG_ENOENT when one is missing; *out is then untouched
 * and build leaves d to be closed.  conf and need are copied from.
 */
struct meg_gpt_data;
int meg_gpt_data_plan(struct meg_gpt_data **out, const struct meg_data_conf *conf,
                      const struct meg_data_need *need, struct meg_err *e);
int meg_gpt_data_build(struct meg_gpt_data *d, struct meg_err *e);
int meg_gpt_data_open(struct meg_gpt_data **out, const struct meg_data_conf *conf,
                      const struct meg_data_need *need, struct meg_err *e);
void meg_gpt_data_close(struct meg_gpt_data *d); /* accepts NULL */

/* NULL where nothing was wanted of the split or the options give it no data.  d's. */
const struct meg_dataset *meg_gpt_data_split(const struct meg_gpt_data *d, int split);

/* Parts of all splits in order; *n of them.  Valid from plan on.  d's. */
const struct meg_data_part *meg_gpt_data_parts(const struct meg_gpt_data *d, int *n);

#endif
