/*
 * ict.h - samples of the inverse cloze task (Lee et al. 2019): a sentence is the query, and the block of sentences
 * around it, with the title of the document, is the context to retrieve.  As Megatron-LM's ICTDataset.
 */
#ifndef MEG_DATA_MASKED_ICT_H
#define MEG_DATA_MASKED_ICT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/decls.h"
#include "base/err.h"
#include "base/mt19937.h"
#include "data/masked/sentence_map.h"

MEG_BEGIN_DECLS

struct meg_ict_conf {
    int64_t seq_length;
    bool use_one_sent_docs;     /* also use documents of one sentence */
    bool has_titles;            /* the context begins with the title */
    double query_in_block_prob; /* probability that the context keeps the query */
    int64_t num_samples;        /* or MEG_ONE_EPOCH */
    uint32_t seed;
    int32_t cls, sep, pad;
};

/*
 * meg_ict_open - map documents [begin, end) of d to blocks
 *   d       a sequence for each sentence; titles: one for each document.  Both are borrowed until close
 * Returns MEG_EUSAGE for a seq_length out of range; MEG_EFORMAT when titles does not fit d, a title fills the context,
 * or no document has a block.
 */
struct meg_ict;
int meg_ict_open(struct meg_ict **out, const struct meg_indexed *d, const struct meg_indexed *titles, int64_t begin,
                 int64_t end, const struct meg_ict_conf *c, struct meg_err *e);
void meg_ict_close(struct meg_ict *x); /* accepts NULL */
int64_t meg_ict_len(const struct meg_ict *x);

/* A sample, in arrays of the caller's, each [seq_length]: ids followed by pad; masks: 1 on ids, 0 on padding. */
struct meg_ict_sample {
    int32_t *query, *query_mask;     /* CLS sentence SEP */
    int32_t *context, *context_mask; /* CLS title SEP block SEP, or CLS block SEP */
    int64_t block[4];                /* row of the block map: see meg_block_map_build */
};

/*
 * meg_ict_sample - make sample i, in [0, len)
 *   g  Python's generator, seeded once by meg_mt19937_seed_python.  Samples draw from it in the order in which they are
 *      made, so a sample depends on those before it, as in Megatron-LM
 * Returns MEG_EFORMAT when the dataset holds no token ids.
 */
int meg_ict_sample(const struct meg_ict *x, int64_t i, struct meg_mt19937 *g, struct meg_ict_sample *out,
                   struct meg_err *e);

MEG_END_DECLS

#endif
