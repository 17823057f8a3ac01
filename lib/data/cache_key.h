/* What a cached index depends on, in the words that Megatron-LM hashes: its names must be ours. */
#ifndef MEG_DATA_CACHE_KEY_H
#define MEG_DATA_CACHE_KEY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/mem.h"
#include "data/masked/bert_t5_sample.h"
#include "data/split.h"

/* One file's part in a split: appends json.dumps(..., indent=4) of its dataset's identifiers. */
struct meg_cache_key {
    const char *class_name; /* "GPTDataset" */
    const char *path;       /* as given */
    int64_t num_samples;    /* or MEG_ONE_EPOCH */
    const char *split;      /* "train" */
    int64_t seed, seq_length;
    const char *split_string; /* --split as given; NULL with data of its own for each split */
    const struct meg_split_matrix *split_matrix;
    const char *tokenizer;                /* a JSON object, or NULL */
    const struct meg_masked_conf *masked; /* of BERT and T5; NULL for GPT */
};
void meg_cache_key_add_dataset(struct meg_str *out, const struct meg_cache_key *id);

/*
 * A blend of n such descriptions.
 *   weight       [n]  normalised; or count [n], samples of each, where the blend takes them all
 *   renormalize  of --renormalize-blend-weights; NULL for a release without it
 */
void meg_cache_key_add_blend(struct meg_str *out, char *const *member, int n, const char *split, const double *weight,
                             const int64_t *count, int64_t size, const bool *renormalize);

#endif
