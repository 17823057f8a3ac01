/*
 * class_masks.h - character classes (letters, numbers, spaces, others) of 64 bytes of text as bit masks (private to
 * lib/tokenizer/pretokenize).  Bit i belongs to byte i.  All bytes of a character are in the class of the character.  A
 * pattern can then be matched by a few shifts and logical operations.
 */
#pragma once
#include <stdint.h>
#include "unicode/char_class.h"
#include "unicode/char_class_simd.h"

struct class_masks {
    uint64_t letter, number, space, other;
    uint64_t space_char; /* U+0020 */
    uint64_t eol;        /* \r and \n */
    uint64_t quote;      /* U+0027 */
    uint64_t tail;       /* bytes that are not the first byte of their character */
};

/*
 * Classify the 64 bytes at s.  Set the masks, except `other`, for the ASCII characters, and set `tail` for all
 * characters.  Return the mask of the bytes that are not ASCII.
 */
typedef uint64_t meg_masks_fn(const char *s, struct class_masks *m);

/* List the SIMD variants that this CPU supports, the fastest first, and return their number. */
int meg_masks_variants(meg_masks_fn *variant[3]);

/* An iterator over the 64-byte blocks of a text. */
struct class_masks_reader {
    const char *text;
    int64_t n, at;
    uint64_t carry[2]; /* class bits of a character that began in the previous block */
    const unsigned char *table;
    meg_masks_fn *classify;
    meg_class_masks_fn *char_class;
};

/*
 * Begin to classify a text of n bytes, which must be well-formed UTF-8.  Each call of meg_masks_next sets m to the
 * masks of the next block, or to zero after the end.
 */
struct class_masks_reader meg_masks_begin(const char *text, int64_t n);
void meg_masks_next(struct class_masks_reader *r, struct class_masks *m);

/*
 * shift_in_prev - move bit i of m to bit i+1, and bit 63 of `prev`, the mask of the previous block, to bit 0
 * shift_in_next - move bit i+k of m to bit i, and the lowest k bits of `next`, the mask of the next block, to the
 *                 highest k bits
 */
static inline uint64_t shift_in_prev(uint64_t m, uint64_t prev)
{
    return m << 1 | prev >> 63;
}

static inline uint64_t shift_in_next(uint64_t m, uint64_t next, int k)
{
    return m >> k | next << (64 - k);
}

/*
 * Return a mask with the first byte of each space in block c that is followed by a nonspace.  The caller provides the
 * masks of spaces and nonspaces of c and of the next block.
 */
static inline uint64_t last_spaces(const struct class_masks *c, uint64_t space, uint64_t nonspace,
                                   const struct class_masks *next, uint64_t next_space, uint64_t next_nonspace)
{
    uint64_t end = space & shift_in_next(nonspace, next_nonspace, 1), next_end = next_space & next_nonspace >> 1;
    uint64_t tail1 = shift_in_next(c->tail, next->tail, 1), tail2 = shift_in_next(c->tail, next->tail, 2);

    return (end | (tail1 & shift_in_next(end, next_end, 1)) | (tail1 & tail2 & shift_in_next(end, next_end, 2))) &
           space & ~c->tail;
}

static inline uint64_t nonspace_of(const struct class_masks *m)
{
    return m->letter | m->number | m->other;
}

/* Changes that contractions in this block make in the next block: pre-token starts to set and to clear. */
struct pending_contractions {
    uint64_t set, clear;
};

/*
 * Make a contraction of len bytes at bit i one pre-token.  b is the mask of the pre-token starts of the block.  Return
 * b with the bit of the second byte cleared and the bit after the last byte set.  A bit that is in the next block is
 * recorded in c instead.
 */
static inline uint64_t apply_contraction(struct pending_contractions *c, uint64_t b, int i, int len)
{
    if (i + 1 < 64)
        b &= ~((uint64_t)1 << (i + 1));
    else
        c->clear = 1;
    if (i + len < 64)
        b |= (uint64_t)1 << (i + len);
    else
        c->set |= (uint64_t)1 << (i + len - 64);
    return b;
}
