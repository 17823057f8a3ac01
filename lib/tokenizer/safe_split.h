/*
 * safe_split.h - where text can be cut before it is segmented, for any vocabulary: between two characters
 * that no piece has side by side.  What lies between two seams can be segmented by itself.
 */
#ifndef MEG_TOKENIZER_SAFE_SPLIT_H
#define MEG_TOKENIZER_SAFE_SPLIT_H

#include <stdint.h>
#include <string.h>

/*
 * What is kept is coarser than pairs of characters, so that some seams are missed: the last byte of
 * the one with the first byte of the other and, where both characters have three bytes, a hash of all
 * six.
 */
struct meg_safe_split {
    unsigned char is_safe[1 << 16]; /* by both bytes as they lie in memory; never inside a character */
    uint64_t joined_hash[1 << 12];  /* bits by hash: a piece may have such a pair */
};

/* All characters have seams between them until pieces join them. */
void meg_safe_split_init(struct meg_safe_split *s);
/* A piece of n bytes, well-formed UTF-8: its characters hold together. */
void meg_safe_split_add_token(struct meg_safe_split *s, const char *piece, int64_t n);

/* Words of the bit mask for a text of n bytes. */
static inline int64_t meg_safe_split_mask_words(int64_t n)
{
    return n / 64 + 1;
}

/*
 * meg_safe_split_find - the seams of a text
 *   mask  [meg_safe_split_mask_words(n)]  out  bit i: a seam in front of byte i; bits 0 and n are set, those
 *                                    after n are 0
 *   text  [n]                        well-formed UTF-8
 */
void meg_safe_split_find(const struct meg_safe_split *s, const char *text, int64_t n, uint64_t *mask);

#endif
