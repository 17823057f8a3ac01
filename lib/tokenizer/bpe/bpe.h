/*
 * bpe.h - merging the symbols of one piece by a ranked list of pairs (Sennrich et al. 2016), in one of
 * two forms:
 *   meg_bpe_merge     GPT-2's: of all pairs of neighbours the one with the lowest rank is merged,
 *                     wherever it occurs, left to right and without overlap
 *   meg_bpe_merge_leftmost SentencePiece's and Hugging Face's: of all neighbours with the lowest rank the
 *                     leftmost two are merged
 * until no pair has a rank.  They differ where a merge makes a pair that ranks before it.
 */
#ifndef MEG_TOKENIZER_BPE_BPE_H
#define MEG_TOKENIZER_BPE_BPE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"

/* What a pair merges to; an id of -1: it does not. */
struct meg_bpe_ranked {
    int32_t rank, id;
};

/* The ranked pairs.  Starts as { 0 }; once filled it is only read, by any number of threads. */
struct meg_bpe {
    struct meg_arena arena;
    struct meg_bpe_pair *slot;    /* open addressing */
    struct meg_bpe_ranked *dense; /* of pairs of the lowest symbols, by both */
    uint64_t *bloom;              /* bits of pairs that may be there */
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
struct meg_bpe_merge_rule {
    int32_t left, right, rank, id;
};
void meg_bpe_add_all(struct meg_bpe *b, const struct meg_bpe_merge_rule *merge, int64_t n);

/*
 * meg_bpe_merge, meg_bpe_merge_leftmost - merge the n symbols of a piece
 *   sym   [n]    in/out  a negative symbol takes part in no pair
 *   rev_merge  [ids]  out     by the symbol a pair merges to: the last such pair that came to lie side by
 *                        side, whether it was merged or not; NULL when nobody asks
 * Return how many are left, at the front of sym.  O(n log n); up to MEG_BPE_SHORT symbols
 * nothing is allocated, above that 24 bytes a symbol.
 */
enum { MEG_BPE_SHORT = 64 };
struct meg_bpe_rev_merge {
    int32_t left, right;
};
int64_t meg_bpe_merge(const struct meg_bpe *b, int32_t *sym, int64_t n);
int64_t meg_bpe_merge_leftmost(const struct meg_bpe *b, int32_t *sym, int64_t n, struct meg_bpe_rev_merge *rev_merge);

/* The same by the other way for long pieces, n >= 1; begin [n] out: where each of those left began. */
int64_t meg_bpe_merge_offsets(const struct meg_bpe *b, bool is_leftmost, int32_t *sym, int64_t n, int32_t *offsets);

/*
 * meg_bpe_stream - merge a piece of any length in bounded memory, a window at a time
 *   is_leftmost  meg_bpe_merge_leftmost, else meg_bpe_merge; the result is theirs
 *   read    writes the next symbols of the piece, as many as it has up to n: less than n only at the end
 *   put     takes the next symbols of the result; a negative return value, with e filled, ends the merging
 *   of      what both get
 *   window  symbols at once, MEG_BPE_WINDOW or for tests fewer
 *   nbytes  length of the word, for the error message
 * O(n log n).  40 bytes a symbol of the window, which grows where a vocabulary lets what comes far behind
 * decide (bpe_stream.c).  MEG_EFORMAT where that was found out too late: then what was put is not the result.
 */
struct meg_bpe_stream {
    const struct meg_bpe *bpe;
    bool is_leftmost;
    int64_t (*read)(void *ctx, int32_t *sym, int64_t n);
    int (*put)(void *ctx, const int32_t *sym, int64_t n, struct meg_err *e);
    void *ctx;
    int64_t window;
    int64_t nbytes;
};
enum { MEG_BPE_WINDOW = 1 << 15 };
int meg_bpe_stream(const struct meg_bpe_stream *s, struct meg_err *e);

#endif
