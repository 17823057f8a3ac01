/*
 * The three arrays that give a GPT dataset its samples.  Sequences ("elements" here, documents in
 * the usual file) are repeated for as many epochs as the samples need and shuffled; their tokens, in
 * that order, are one stream, cut every seq_length tokens; the cuts are shuffled again.
 * As Megatron-LM's GPTDataset; files that keep them: data/index_cache.h.
 */
#ifndef MEG_DATA_GPT_INDEX_H
#define MEG_DATA_GPT_INDEX_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "data/source.h"

enum { MEG_ONE_EPOCH = -1 }; /* as a number of wanted samples: as many as one epoch has */

/* How samples are cut. */
struct meg_gpt_index_conf {
    int64_t seq_length;
    int add_extra_token; /* 1: a sample also reads the next token, its last label */
    bool is_deepspeed;   /* the last epoch is shuffled apart when under 95% of it is wanted, not 80% */
};

/* What the arrays will hold: plain arithmetic, nothing allocated. */
struct meg_gpt_index_sizes {
    int64_t elements; /* of one epoch */
    int64_t tokens_per_epoch, epochs;
    int64_t samples;                   /* what the tokens of all epochs give: often more than wanted */
    int64_t samples_before_last_epoch; /* samples that end before the last epoch, where it is separate */
    bool separate_last_epoch;          /* little of it is wanted: it is shuffled on its own, after */
};

/*
 * meg_gpt_index_plan - epochs and samples for wanted samples (or MEG_ONE_EPOCH)
 * tokens_per_epoch > 0.  MEG_EFORMAT when the numbers pass 2^62.
 */
int meg_gpt_index_plan(struct meg_gpt_index_sizes *p, int64_t elements, int64_t tokens_per_epoch, int64_t num_samples,
                       const struct meg_gpt_index_conf *conf, struct meg_err *e);

/* The arrays, each in the narrowest type that Megatron's files give it. */
struct meg_gpt_index {
    int64_t ndocument, nsample;
    bool is_sample_int64, is_shuffle_int64; /* int64 instead of int32, uint32 */
    const int32_t *document;                /* [ndocument] element numbers of the source */
    const void *sample;                     /* [nsample + 1, 2] position in document, token in it */
    const void *shuffle;                    /* [nsample] */
    void *owned[3];                         /* what meg_gpt_index_free frees; NULL when mapped */
};

/* The sample that is number i of the shuffled order, and where a sample begins. */
static inline int64_t meg_gpt_index_shuffled(const struct meg_gpt_index *x, int64_t i)
{
    return x->is_shuffle_int64 ? ((const int64_t *)x->shuffle)[i] : ((const uint32_t *)x->shuffle)[i];
}
static inline void meg_gpt_index_start(const struct meg_gpt_index *x, int64_t sample, int64_t *k, int64_t *offset)
{
    const int64_t *i64 = (const int64_t *)x->sample;
    const int32_t *i32 = (const int32_t *)x->sample;
    *k = x->is_sample_int64 ? i64[2 * sample] : i32[2 * sample];
    *offset = x->is_sample_int64 ? i64[2 * sample + 1] : i32[2 * sample + 1];
}

/* Sizes and types of the arrays of a plan; the arrays themselves are left NULL. */
void meg_gpt_index_shape(struct meg_gpt_index *x, const struct meg_gpt_index_sizes *p);

/*
 * meg_gpt_index_build - build the arrays for elements [begin, begin + p->elements) of src
 *   x     of meg_gpt_index_shape, which says the types; meg_gpt_index_free'd by the caller
 *   seed  of numpy's RandomState, in [0, 2^32)
 * Cannot fail.
 */
void meg_gpt_index_build(struct meg_gpt_index *x, const struct meg_gpt_index_sizes *p, const struct meg_source *src,
                         int64_t begin, const struct meg_gpt_index_conf *conf, uint32_t seed);
void meg_gpt_index_free(struct meg_gpt_index *x);

#endif
