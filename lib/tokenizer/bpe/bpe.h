/*
 * bpe.h - byte pair encoding: repeatedly merge adjacent symbols of one pre-token, in the order of a table of ranked
 * pairs (Sennrich et al. 2016).  There are two variants:
 *   meg_bpe_merge           GPT-2's: merge all occurrences of the adjacent pair of lowest rank, left to right and
 *                           without overlap
 *   meg_bpe_merge_leftmost  SentencePiece's and Hugging Face's: merge the leftmost occurrence of the adjacent pair of
 *                           lowest rank
 * Both repeat this until no adjacent pair has a rank.  The two results can differ if a merge creates a pair of lower
 * rank than the merged pair.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "base/err.h"
#include "base/mem.h"

/* Rank and merged symbol of a pair.  id is -1 if the pair is not merged. */
struct meg_bpe_ranked {
    int32_t rank, id;
};

/* The table of ranked pairs.  It starts as { 0 }.  Any number of threads may use a table that has been filled. */
struct meg_bpe {
    struct meg_arena arena;
    struct meg_bpe_pair *slot;    /* hash table with open addressing */
    struct meg_bpe_ranked *dense; /* table of the pairs of symbols below 256, which are not in slot */
    uint64_t *bloom;              /* Bloom filter of the pairs in slot */
    uint64_t mask;
    int64_t n;
};

/* Allocate memory for n pairs, and make the table empty.  The process ends if memory is exhausted. */
void meg_bpe_init(struct meg_bpe *b, int64_t n);
void meg_bpe_free(struct meg_bpe *b);

/*
 * Add a merge: symbols left and right, both >= 0, merge to symbol id with this rank.  Replace an earlier merge of the
 * same pair.
 */
void meg_bpe_add(struct meg_bpe *b, int32_t left, int32_t right, int32_t rank, int32_t id);

/* Add n merges.  One call is faster than n calls of meg_bpe_add, since the function prefetches table entries. */
struct meg_bpe_merge_rule {
    int32_t left, right, rank, id;
};
void meg_bpe_add_all(struct meg_bpe *b, const struct meg_bpe_merge_rule *merge, int64_t n);

/*
 * meg_bpe_merge, meg_bpe_merge_leftmost - merge the n symbols of a pre-token
 *   sym        in/out     a negative symbol is never merged
 *   rev_merge  out        may be NULL.  For each adjacent pair that occurs and has a merge to symbol id, rev_merge[id]
 *                         is set to the pair, even if the pair is not merged.  A later pair overwrites an earlier one.
 * Return the number of resulting symbols.  They are at the front of sym.  The time is O(n log n).  No memory is
 * allocated for up to MEG_BPE_SHORT symbols; for more, about 24 bytes per symbol are allocated.
 */
enum { MEG_BPE_SHORT = 64 };
struct meg_bpe_rev_merge {
    int32_t left, right;
};
int64_t meg_bpe_merge(const struct meg_bpe *b, int32_t *sym, int64_t n);
int64_t meg_bpe_merge_leftmost(const struct meg_bpe *b, int32_t *sym, int64_t n, struct meg_bpe_rev_merge *rev_merge);

/*
 * Merge n >= 1 symbols as meg_bpe_merge_leftmost does if is_leftmost, else as meg_bpe_merge does.  Also set offsets[k]
 * to the index of the first input symbol of resulting symbol k.  The array offsets has n elements.
 */
int64_t meg_bpe_merge_offsets(const struct meg_bpe *b, bool is_leftmost, int32_t *sym, int64_t n, int32_t *offsets);

/*
 * meg_bpe_stream - merge a long pre-token, one window at a time
 *   is_leftmost  true: merge like meg_bpe_merge_leftmost; false: like meg_bpe_merge
 *   read         reads the next n symbols, or fewer at the end of the pre-token, and returns their number
 *   put          receives the next symbols of the result; a negative return value, with e set, ends the merging
 *   ctx          argument of read and put
 *   window       number of symbols per window: MEG_BPE_WINDOW, or fewer in tests
 *   nbytes       bytes of the pre-token, printed in the error message
 * The window is enlarged until it contains an offset at which the pre-token can be cut (bpe_stream.c).  About 50 bytes
 * per symbol of the window are allocated.  Returns MEG_EFORMAT if the cut before the window turns out to be unsafe.  In
 * this case, some symbols that put has received may be wrong.  Otherwise fails as put does.
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
