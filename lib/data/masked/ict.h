/*
 * ict.h - samples of the inverse cloze task (Lee et al. 2019).  The query is one sentence.  The context to retrieve is
 * the block of sentences around the query, with the title of the document.  The samples equal those of Megatron-LM's
 * ICTDataset.
 */
#ifndef MEG_DATA_MASKED_ICT_H
#define MEG_DATA_MASKED_ICT_H
#include <stdbool.h>
#include <stdint.h>
#include "base/decls.h"
#include "base/err.h"
#include "data/masked/sentence_map.h"
#include "data/mt19937.h"

MEG_BEGIN_DECLS

struct meg_ict_conf {
    int64_t seq_length;
    bool use_one_sent_docs;     /* also use documents of one sentence */
    bool has_titles;            /* the context begins with the title */
    double query_in_block_prob; /* probability that the context contains the query */
    int64_t num_samples;        /* samples to build, or MEG_ONE_EPOCH */
    uint32_t seed;
    int32_t cls, sep, pad;
};

/*
 * meg_ict_open - divide documents [begin, end) of d into blocks of sentences
 *   d       dataset with one sequence for each sentence; borrowed until meg_ict_close
 *   titles  dataset with one sequence for each document of d; borrowed until meg_ict_close
 * Returns MEG_EUSAGE for a seq_length outside [5, INT32_MAX].  Returns MEG_EFORMAT in three cases:
 *   - The number of titles differs from the number of documents.
 *   - No document yields a block.
 *   - has_titles is true, and a title is longer than seq_length - 3.
 */
struct meg_ict;
int meg_ict_open(struct meg_ict **out, const struct meg_indexed *d, const struct meg_indexed *titles, int64_t begin,
                 int64_t end, const struct meg_ict_conf *c, struct meg_err *e);
void meg_ict_close(struct meg_ict *x); /* accepts NULL */
int64_t meg_ict_len(const struct meg_ict *x);

/*
 * A sample, in arrays of the caller, each [seq_length].  Ids that do not fit before the last SEP are dropped; query and
 * context are padded with `pad`.  The masks are 1 at ids and 0 at padding.
 */
struct meg_ict_sample {
    int32_t *query, *query_mask;     /* CLS sentence SEP */
    int32_t *context, *context_mask; /* CLS title SEP block SEP, or CLS block SEP */
    int64_t block[4];                /* row of the block map: see meg_block_map_build */
};

/*
 * meg_ict_sample - build sample i, in [0, len)
 *   g  Python's random generator, seeded once by meg_mt19937_seed_python
 * As in Megatron-LM, all samples draw from g, so a sample depends on the samples that were built earlier.
 * Returns the errors of meg_indexed_get.
 */
int meg_ict_sample(const struct meg_ict *x, int64_t i, struct meg_mt19937 *g, struct meg_ict_sample *out,
                   struct meg_err *e);

MEG_END_DECLS

#endif
