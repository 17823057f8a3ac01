/*
 * split_gpt2.h - the split pattern of GPT-2 without a regular expression:
 *   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
 * tried in this order at each place, leftmost first, no overlap (Radford et al. 2019; classes:
 * text/uclass.h).  Every byte belongs to a piece.
 */
#ifndef MEG_TEXT_SPLIT_GPT2_H
#define MEG_TEXT_SPLIT_GPT2_H

#include <stdint.h>

/* Words of the bit mask for a text of n bytes. */
static inline int64_t meg_split_words(int64_t n)
{
    return n / 64 + 1;
}

/*
 * meg_split_gpt2 - where pieces begin
 *   starts  [meg_split_words(n)]  out  bit i of the mask: a piece begins at byte i; bit n is set,
 *                                      bits after it are 0
 *   text    [n]                        well-formed UTF-8 (anything else is a bug of the caller)
 * So pieces lie between neighbouring set bits.  Linear in n.
 */
void meg_split_gpt2(const char *text, int64_t n, uint64_t *starts);

#endif
