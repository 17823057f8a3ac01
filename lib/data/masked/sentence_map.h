/*
 * Which sentences make a sample of BERT, T5 or ICT: neighbours of one document, gathered until they
 * reach a length, over as many epochs as are needed, and shuffled.  As Megatron-LM's helpers
 * build_mapping and build_blocks_mapping.
 */
#ifndef MEG_DATA_MASKED_SENTENCE_MAP_H
#define MEG_DATA_MASKED_SENTENCE_MAP_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "data/indexed.h"

enum {
    MEG_LONG_SENTENCE = 512,              /* tokens; a document with a longer one gives no sample */
    MEG_UNLIMITED_EPOCHS = INT32_MAX - 1, /* more than any run needs */
};

/* Rows of a sample: uint32, or uint64 where the dataset has 2^32 sequences and more. */
struct meg_sentence_map {
    int64_t n;
    int columns;
    bool is_uint64;
    const void *row; /* [n, columns] */
    void *owned;     /* what meg_sentence_map_free frees; NULL when mapped */
};
static inline int64_t meg_sentence_map_at(const struct meg_sentence_map *m, int64_t i, int column)
{
    const uint64_t *u64 = (const uint64_t *)m->row;
    const uint32_t *u32 = (const uint32_t *)m->row;
    return m->is_uint64 ? (int64_t)u64[i * m->columns + column] : u32[i * m->columns + column];
}
/* Columns and type of the rows for d, none of which there are. */
void meg_sentence_map_shape(struct meg_sentence_map *m, const struct meg_indexed *d, int columns);
void meg_sentence_map_free(struct meg_sentence_map *m);

struct meg_sentence_map_conf {
    int64_t max_length; /* tokens of a sample, without what is added between sentences; >= 2 */
    int min_sentences;
    double short_seq_prob; /* share of samples that are made shorter, in [2^-31, 1], or 0 */
    int64_t max_epochs, max_samples;
    uint32_t seed;
};

/*
 * meg_sentence_map_build - rows (first sentence, one behind the last, target length), sentences
 *   counted as sequences of d
 *   [begin, end)  documents of d
 * Whole epochs are made until there are max_samples, so there may be more; after an epoch that gives
 * nothing there are none.
 */
void meg_sentence_map_build(struct meg_sentence_map *m, const struct meg_indexed *d, int64_t begin, int64_t end,
                            const struct meg_sentence_map_conf *c);

/*
 * meg_block_map_build - rows (first sentence, one behind the last, document, number of the block in
 *   its epoch), for blocks that leave room for the title of their document
 *   titles  a sequence for each document of d
 *   c       min_sentences: 2, or 1 to take documents of one sentence, too; short_seq_prob is not used
 * Documents are counted as those of d, so that each keeps its own title in any split.  MEG_EFORMAT when
 * titles has other than one sequence a document.
 */
int meg_block_map_build(struct meg_sentence_map *m, const struct meg_indexed *d, const struct meg_indexed *titles,
                        int64_t begin, int64_t end, const struct meg_sentence_map_conf *c, struct meg_err *e);

#endif
