/*
 * cache_key.h - descriptions of cached indices.  A description lists the inputs of an index as JSON text.  The names of
 * the index files contain the MD5 of this text.  The text equals Megatron-LM's unique_description byte for byte, so meg
 * and Megatron-LM use the same file names.  Megatron-DeepSpeed's file names contain no MD5 (data/index_cache.h).
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "base/mem.h"
#include "data/blend/split.h"
#include "data/masked/bert_t5_sample.h"

/* The inputs of one mid-level dataset's index.  A mid-level dataset is the range of one file that one split reads. */
struct meg_cache_key {
    const char *class_name; /* for example "GPTDataset" */
    const char *path;       /* prefix, as in the option */
    int64_t num_samples;    /* samples to build, or MEG_ONE_EPOCH */
    const char *split;      /* for example "train" */
    int64_t seed, seq_length;
    const char *split_string; /* value of --split; NULL when each split has its own datasets */
    const struct meg_split_matrix *split_matrix;
    const char *tokenizer;                /* description of the tokenizer, a JSON object; or NULL */
    const struct meg_masked_conf *masked; /* masking settings of BERT and T5; NULL for GPT */
};
/* Append the description of one mid-level dataset, formatted as by Python's json.dumps(..., indent=4). */
void meg_cache_key_add_dataset(struct meg_str *out, const struct meg_cache_key *id);

/* The inputs of the index of a blend of n datasets. */
struct meg_blend_key {
    char *const *member; /* [n] descriptions of the datasets */
    int n;
    const char *split;
    const double *weight;    /* [n] normalized weights; not used if count is not NULL */
    const int64_t *count;    /* [n] sizes of the datasets, if the blend takes all of their samples; else NULL */
    int64_t size;            /* number of samples in the blend; MEG_ONE_EPOCH if count is not NULL */
    const bool *renormalize; /* --renormalize-blend-weights; NULL for a Megatron-LM release without that option */
};
/* Append the description of a blend, formatted in the same way. */
void meg_cache_key_add_blend(struct meg_str *out, const struct meg_blend_key *id);
