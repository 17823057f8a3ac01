/*
 * sentence_map.h - the map from samples of BERT and T5 to sentences.  A sample consists of at least min_sentences
 * adjacent sentences of one document.  The sample ends when the sentences reach a target length or the document ends.
 * If fewer than two sentences of the document would remain, the sample contains the remaining sentences as well.
 * All documents are mapped once per epoch, for as many epochs as the samples require.  The map has one row for each
 * sample; finally, the rows are shuffled.  The maps equal those of Megatron-LM's helper build_mapping.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "base/err.h"
#include "data/indexed/indexed.h"

enum {
    MEG_SENTENCE_MAP_COLUMNS = 3,
    MEG_LONG_SENTENCE = 512,              /* maximum tokens per sentence; see meg_sentence_map_build */
    MEG_UNLIMITED_EPOCHS = INT32_MAX - 1, /* value of max_epochs that is never reached */
};

/* One row for each sample.  The values are uint32, or uint64 if the dataset has 2^32 sequences or more. */
struct meg_sentence_map {
    int64_t n;
    bool is_uint64;
    const void *row; /* [n, MEG_SENTENCE_MAP_COLUMNS] */
    void *owned;     /* array that meg_sentence_map_free frees; NULL if the rows are mapped from a file */
};

static inline int64_t meg_sentence_map_at(const struct meg_sentence_map *m, int64_t i, int column)
{
    const uint64_t *u64 = (const uint64_t *)m->row;
    const uint32_t *u32 = (const uint32_t *)m->row;
    const int64_t at = i * MEG_SENTENCE_MAP_COLUMNS + column;

    return m->is_uint64 ? (int64_t)u64[at] : u32[at];
}
/* Initialize a map without rows for dataset d, which determines the type of the values. */
void meg_sentence_map_shape(struct meg_sentence_map *m, const struct meg_indexed *d);
void meg_sentence_map_free(struct meg_sentence_map *m);

struct meg_sentence_map_conf {
    int64_t max_length; /* maximum target length in tokens, without special tokens; >= 2 */
    int min_sentences;
    double short_seq_prob;           /* fraction of samples with a reduced target length: 0, or in [2^-31, 1] */
    int64_t max_epochs, max_samples; /* mapping ends after the epoch that reaches one of these limits */
    uint32_t seed;
};

/*
 * meg_sentence_map_build - build rows (first sentence, last sentence + 1, target length)
 *   m             out  the caller frees m with meg_sentence_map_free
 *   [begin, end)  range of documents of d
 * Sentence i is sequence i of d.  A document is skipped if it has fewer than min_sentences sentences.  A document of
 * several sentences is skipped if one of them exceeds MEG_LONG_SENTENCE tokens.
 * Each epoch is mapped completely, so the map may have more than max_samples rows.  Mapping ends early after an epoch
 * that adds no row.
 */
void meg_sentence_map_build(struct meg_sentence_map *m, const struct meg_indexed *d, int64_t begin, int64_t end,
                            const struct meg_sentence_map_conf *c);

/*
 * Return whether the first and the last sentence in the map are those of the documents [begin, end) that
 * meg_sentence_map_build does not skip.  A map that was built for a different range differs in one of these sentences,
 * unless the map has the same rows.
 */
bool meg_sentence_map_matches_range(const struct meg_sentence_map *m, const struct meg_indexed *d, int64_t begin,
                                    int64_t end, const struct meg_sentence_map_conf *c);
