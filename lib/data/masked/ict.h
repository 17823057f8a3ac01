/*
 * Samples of the inverse cloze task (Lee et al. 2019): a sentence as a query, and the block of sentences
 * around it, with the title of their document, as the context it is to find.  As Megatron-LM's
 * ICTDataset.
 */
#ifndef MEG_DATA_MASKED_ICT_H
#define MEG_DATA_MASKED_ICT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mt19937.h"
#include "data/masked/sentence_map.h"

struct meg_ict_conf {
    int64_t seq_length;
    bool use_one_sent_docs;     /* documents of one sentence, too */
    bool has_titles;            /* the context begins with the title */
    double query_in_block_prob; /* share of samples whose context keeps the query */
    int64_t num_samples;        /* samples, or MEG_ONE_EPOCH */
    uint32_t seed;
    int32_t cls, sep, pad;
};

/*
 * meg_ict_open - blocks of documents [begin, end) of d
 *   d       a sequence for each sentence; titles: one for each document.  Both borrowed until close
 * MEG_EUSAGE for numbers that make no sense, MEG_EFORMAT when titles does not fit d, a title leaves no
 * room, or there is no block.
 */
struct meg_ict;
int meg_ict_open(struct meg_ict **out, const struct meg_indexed *d, const struct meg_indexed *titles, int64_t begin,
                 int64_t end, const struct meg_ict_conf *c, struct meg_err *e);
void meg_ict_close(struct meg_ict *x); /* accepts NULL */
int64_t meg_ict_len(const struct meg_ict *x);

/* Arrays of the caller's, each [seq_length] and written whole: ids and pad, 1 and 0. */
struct meg_ict_sample {
    int32_t *query, *query_mask;     /* CLS sentence SEP */
    int32_t *context, *context_mask; /* CLS title SEP block SEP, or CLS block SEP */
    int64_t block[4];                /* its row: see meg_block_map_build */
};

/*
 * meg_ict_sample - sample i, in [0, len)
 *   g  Python's generator, seeded once by meg_mt19937_seed_python and drawn from in the order that
 *      samples are read: there, too, a sample depends on those before it
 * MEG_EFORMAT when the dataset holds no token ids.
 */
int meg_ict_sample(const struct meg_ict *x, int64_t i, struct meg_mt19937 *g, struct meg_ict_sample *out,
                   struct meg_err *e);

#endif
