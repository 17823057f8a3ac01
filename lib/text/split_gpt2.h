/*
 * split_gpt2.h - the split pattern of GPT-2 without a regular expression:
 *   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
 * tried in this order at each place, leftmost first, no overlap (Radford et al. 2019; classes:
 * text/uclass.h).  Every byte belongs to a piece.
 */
#ifndef MEG_TEXT_SPLIT_GPT2_H
#define MEG_TEXT_SPLIT_GPT2_H

#include <stdbool.h>
#include <stdint.h>

/* The mask of a text and a walk through its pieces.  Starts as { 0 }, serves one text after another,
 * ends with meg_pieces_free. */
struct meg_pieces {
    const char *text, *begin, *end; /* begin: the next piece */
    uint64_t *starts;               /* bit i: a piece begins at byte i, or the text ends there */
    int64_t cap, k;
    uint64_t bits; /* those of starts[k] that are still to come */
};

/* Split a text of n bytes, well-formed UTF-8 (anything else is a bug of the caller), which must stay
 * while its pieces are taken.  Linear in n. */
void meg_pieces_of(struct meg_pieces *p, const char *text, int64_t n);
void meg_pieces_free(struct meg_pieces *p);

/* The next piece, of *n >= 1 bytes; false at the end. */
static inline bool meg_pieces_next(struct meg_pieces *p, const char **s, int64_t *n)
{
    const char *stop;

    if (p->begin == p->end)
        return false;
    while (p->bits == 0)
        p->bits = p->starts[++p->k];
    stop = p->text + 64 * p->k + __builtin_ctzll(p->bits);
    p->bits &= p->bits - 1;
    *s = p->begin;
    *n = stop - p->begin;
    p->begin = stop;
    return true;
}

#endif
