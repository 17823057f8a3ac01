/*
 * bpe.h - merging the symbols of one piece by a ranked list of pairs (Sennrich et al. 2016), in one of
 * two forms:
 *   meg_bpe_merge     GPT-2's: of all pairs of neighbours the one with the lowest rank is merged,
 *                     wherever it occurs, left to right and without overlap
 *   meg_bpe_merge_one SentencePiece's and Hugging Face's: of all neighbours with the lowest rank the
 *                     leftmost two are merged
 * until no pair has a rank.  They differ where a merge makes a pair that ranks before it.
 */
#ifndef MEG_TEXT_BPE_H
#define MEG_TEXT_BPE_H

#include <stdint.h>

#include "base/mem.h"

/* The ranked pairs.  Starts as { 0 }; once filled it is only read, by any number of threads. */
struct meg_bpe {
    struct meg_arena arena;
    struct meg_bpe_pair *slot; /* open addressing */
    uint64_t *maybe;           /* bits of pairs that may be there */
    uint64_t mask;
    int64_t n;
};

/* Room for n pairs. */
void meg_bpe_init(struct meg_bpe *b, int64_t n);
void meg_bpe_free(struct meg_bpe *b);

/* Symbols left and right (both >= 0) merge to symbol id with that rank.  A pair that is there
 * already gets the new rank. */
void meg_bpe_add(struct meg_bpe *b, int32_t left, int32_t right, int32_t rank, int32_t id);

/* n pairs, one after the other: faster than each by itself. */
struct meg_bpe_merge {
    int32_t left, right, rank, id;
};
void meg_bpe_add_all(struct meg_bpe *b, const struct meg_bpe_merge *merge, int64_t n);

/*
 * meg_bpe_merge, meg_bpe_merge_one - merge the n symbols of a piece
 *   sym   [n]    in/out  a negative symbol takes part in no pair
 *   seen  [ids]  out     by the symbol a pair merges to: the last such pair that came to lie side by
 *                        side, whether it was merged or not; NULL when nobody asks
 * Return how many are left, at the front of sym.  O(n log n); up to MEG_BPE_SHORT symbols
 * nothing is allocated, above that 24 bytes a symbol.
 */
enum { MEG_BPE_SHORT = 64 };
struct meg_bpe_seen {
    int32_t left, right;
};
int64_t meg_bpe_merge(const struct meg_bpe *b, int32_t *sym, int64_t n);
int64_t meg_bpe_merge_one(const struct meg_bpe *b, int32_t *sym, int64_t n,
                          struct meg_bpe_seen *seen);

#endif
