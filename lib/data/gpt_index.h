/*
 * gpt_index.h - document, sample and shuffle index: the three arrays that define the samples of a GPT dataset.
 * An element is one sequence of the source, usually a complete document.  The elements are repeated for as many epochs
 * as the requested samples require.  The repeated elements are shuffled, and their tokens form one stream.  The stream
 * is cut into samples of seq_length tokens.  Finally, the samples are shuffled.
 * The arrays equal the indexes of Megatron-LM's GPTDataset.  data/index_cache.h stores the arrays in files.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "base/err.h"
#include "data/blend/source.h"

enum { MEG_ONE_EPOCH = -1 }; /* value of num_samples that requests all samples of one epoch */

struct meg_gpt_index_conf {
    int64_t seq_length;
    int add_extra_token; /* 1: a sample reads one extra token, the label of its last token */
    bool is_deepspeed;   /* compute separate_last_epoch as Megatron-DeepSpeed does */
};

/*
 * Sizes of the arrays.  The last of several epochs is shuffled separately if less than 80% of its samples are requested
 * (Megatron-DeepSpeed: 95%).
 */
struct meg_gpt_index_sizes {
    int64_t elements; /* elements in one epoch */
    int64_t tokens_per_epoch, epochs;
    int64_t samples;                   /* samples in all epochs, often more than requested */
    int64_t samples_before_last_epoch; /* samples that end before the last epoch; 0 for one epoch */
    bool separate_last_epoch;          /* shuffle the last epoch separately */
};

/*
 * meg_gpt_index_plan - compute the number of epochs that num_samples samples require, and the sizes of the arrays
 *   tokens_per_epoch  > 0
 *   num_samples       >= 0, or MEG_ONE_EPOCH
 * Returns MEG_EFORMAT when num_samples * seq_length + tokens_per_epoch is 2^62 or more.
 */
int meg_gpt_index_plan(struct meg_gpt_index_sizes *p, int64_t elements, int64_t tokens_per_epoch, int64_t num_samples,
                       const struct meg_gpt_index_conf *conf, struct meg_err *e);

/*
 * The arrays, with the types of Megatron-LM's files.  `sample` is int32, or int64 if ndocument exceeds INT32_MAX.
 * `shuffle` is uint32, or int64 if nsample is at least 2^32 - 2.
 */
struct meg_gpt_index {
    int64_t ndocument, nsample;
    bool is_sample_int64, is_shuffle_int64;
    const int32_t *document; /* [ndocument] indices of the sequences (Megatron: documents) of all epochs, shuffled */
    const void *sample;      /* [nsample + 1, 2] start of each sample before shuffling: index into `document`, token
                                offset in that sequence */
    const void *shuffle;     /* [nsample] indices into `sample`, shuffled */
    void *owned[3];          /* arrays that meg_gpt_index_free frees; NULL if the arrays are mapped from files */
};

/* Return the number that sample i of the shuffled order has before shuffling: an index into x->sample. */
static inline int64_t meg_gpt_index_shuffled(const struct meg_gpt_index *x, int64_t i)
{
    return x->is_shuffle_int64 ? ((const int64_t *)x->shuffle)[i] : ((const uint32_t *)x->shuffle)[i];
}

/*
 * Look up where a sample begins: at token *offset of element document[*k].  `sample` is the number that the sample has
 * before shuffling.
 */
static inline void meg_gpt_index_start(const struct meg_gpt_index *x, int64_t sample, int64_t *k, int64_t *offset)
{
    const int64_t *i64 = (const int64_t *)x->sample;
    const int32_t *i32 = (const int32_t *)x->sample;
    *k = x->is_sample_int64 ? i64[2 * sample] : i32[2 * sample];
    *offset = x->is_sample_int64 ? i64[2 * sample + 1] : i32[2 * sample + 1];
}

/* Set the lengths and data types of the arrays; set the array pointers to NULL. */
void meg_gpt_index_shape(struct meg_gpt_index *x, const struct meg_gpt_index_sizes *p);

/*
 * meg_gpt_index_build - build the arrays for elements [begin, begin + p->elements) of src
 *   x     set by meg_gpt_index_shape; the caller frees x with meg_gpt_index_free
 *   seed  the shuffles are those that numpy.random.RandomState(seed) makes
 */
void meg_gpt_index_build(struct meg_gpt_index *x, const struct meg_gpt_index_sizes *p, const struct meg_source *src,
                         int64_t begin, const struct meg_gpt_index_conf *conf, uint32_t seed);
void meg_gpt_index_free(struct meg_gpt_index *x);
