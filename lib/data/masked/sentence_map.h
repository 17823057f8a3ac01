/*
 * sentence_map.h - the map from samples of BERT, T5 and ICT to sentences.  A sample consists of adjacent sentences of
 * one document that reach a target length.  All documents are mapped for as many epochs as the samples require; the
 * rows are then shuffled.  The maps equal those of Megatron-LM's helpers build_mapping and build_blocks_mapping.
 */
#ifndef MEG_DATA_MASKED_SENTENCE_MAP_H
#define MEG_DATA_MASKED_SENTENCE_MAP_H

#include <stdbool.h>
#include <stdint.h>

#include "base/decls.h"
#include "base/err.h"
#include "data/indexed/indexed.h"

MEG_BEGIN_DECLS

enum {
    MEG_LONG_SENTENCE = 512,              /* maximum tokens per sentence; documents with a longer one are skipped */
    MEG_UNLIMITED_EPOCHS = INT32_MAX - 1, /* more than any run needs */
};

/* One row for each sample.  The elements are uint32, or uint64 if the dataset has 2^32 sequences or more. */
struct meg_sentence_map {
    int64_t n;
    int columns;
    bool is_uint64;
    const void *row; /* [n, columns] */
    void *owned;     /* allocation for meg_sentence_map_free; NULL when mapped from a file */
};

static inline int64_t meg_sentence_map_at(const struct meg_sentence_map *m, int64_t i, int column)
{
    const uint64_t *u64 = (const uint64_t *)m->row;
    const uint32_t *u32 = (const uint32_t *)m->row;
    return m->is_uint64 ? (int64_t)u64[i * m->columns + column] : u32[i * m->columns + column];
}
/* Initialise a map without rows: set the number of columns, and the element type for d. */
void meg_sentence_map_shape(struct meg_sentence_map *m, const struct meg_indexed *d, int columns);
void meg_sentence_map_free(struct meg_sentence_map *m);

struct meg_sentence_map_conf {
    int64_t max_length; /* maximum target length in tokens, without special tokens; >= 2 */
    int min_sentences;
    double short_seq_prob; /* fraction of samples with a shorter target length, in [2^-31, 1], or 0 */
    int64_t max_epochs, max_samples;
    uint32_t seed;
};

/*
 * meg_sentence_map_build - build rows (first sentence, end of the sentences, target length)
 *   [begin, end)  documents of d
 * Sentences are numbered as the sequences of d.  A document of one sentence is used whatever its length.  Every epoch
 * is mapped completely, so the map may have more than max_samples rows.  Mapping ends after an epoch that adds no row.
 */
void meg_sentence_map_build(struct meg_sentence_map *m, const struct meg_indexed *d, int64_t begin, int64_t end,
                            const struct meg_sentence_map_conf *c);

/*
 * meg_block_map_build - build rows (first sentence, end of the sentences, document, number of the block in its epoch)
 *   titles  dataset with one sequence for each document of d
 *   c       min_sentences is 2, or 1 to use documents of one sentence, too; short_seq_prob is not used
 * The target length of a block is max_length minus the length of its document's title.  Documents have the same numbers
 * in d and titles, in every split.  Returns MEG_EFORMAT when titles does not have one sequence for each document.
 */
int meg_block_map_build(struct meg_sentence_map *m, const struct meg_indexed *d, const struct meg_indexed *titles,
                        int64_t begin, int64_t end, const struct meg_sentence_map_conf *c, struct meg_err *e);

MEG_END_DECLS

#endif
