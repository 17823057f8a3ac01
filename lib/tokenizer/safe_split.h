/*
 * safe_split.h - find safe split points: offsets at which a text can be split without changing its tokens.  The point
 * between two characters is safe if no token of the vocabulary contains the first character directly before the second.
 */
#pragma once
#include <stdint.h>
#include <string.h>

/*
 * The pairs of neighboring characters in the tokens of a vocabulary.  A pair is stored by the last byte of its left
 * character and the first byte of its right character.  A pair of three-byte characters is stored a second time, by a
 * hash of the six bytes.  Different pairs can have the same entry, so some safe split points are not found.
 */
struct meg_safe_split {
    unsigned char is_safe[1 << 16]; /* 1: a split between the two bytes is safe; indexed by both as a uint16 */
    uint64_t joined_hash[1 << 12];  /* bit mask indexed by the hash; 1: a token may contain the pair */
};

/* Initialize s for the empty vocabulary: all points between characters are safe. */
void meg_safe_split_init(struct meg_safe_split *s);
/* Mark the points between the characters of a token as not safe.  The token is n bytes of well-formed UTF-8. */
void meg_safe_split_add_token(struct meg_safe_split *s, const char *token, int64_t n);

/*
 * meg_safe_split_find - find the safe split points of a text
 *   mask  out  [n / 64 + 1]  If bit i is set, the text can be split before byte i.  Bits 0
 *              and n are set.  The bits after n are 0.
 *   text  [n]  well-formed UTF-8
 */
void meg_safe_split_find(const struct meg_safe_split *s, const char *text, int64_t n, uint64_t *mask);
