/*
 * masks.h - a text 64 bytes at a time as bit masks, one bit a byte, all bytes of a character
 * alike: letters, numbers, spaces and what is none of them.  A split pattern is then a few shifts.
 * Private to split_*.c.
 */
#ifndef MEG_TOKENIZER_PRETOKENIZE_MASKS_H
#define MEG_TOKENIZER_PRETOKENIZE_MASKS_H

#include <stdint.h>

#include "unicode/char_class.h"
#include "unicode/char_class_simd.h"

struct class_masks {
    uint64_t letter, number, space, other;
    uint64_t space_char; /* U+0020 */
    uint64_t eol;        /* \r and \n */
    uint64_t quote;      /* U+0027 */
    uint64_t tail;       /* not the first byte of its character */
};

/* ASCII of the 64 bytes at s, but for other, and tail; returns the bytes that are no ASCII. */
typedef uint64_t meg_masks_fn(const char *s, struct class_masks *m);

/* The ways of doing that which this machine has, the best first; returns how many. */
int meg_masks_variants(meg_masks_fn *variant[3]);

/* What of a text is still to be classified. */
struct class_masks_reader {
    const char *text;
    int64_t n, at;
    uint64_t cut[2]; /* the bits of the class of the character that the last block cut */
    const unsigned char *table;
    meg_masks_fn *classify;
    meg_class_masks_fn *char_class;
};

/* Begin with a text, well-formed UTF-8; then the masks of block after block, zeros behind the end. */
struct class_masks_reader meg_masks_begin(const char *text, int64_t n);
void meg_masks_next(struct class_masks_reader *r, struct class_masks *m);

/* Bit i of the result is bit i-1, or bit i+k, of the mask that prev or next continues. */
static inline uint64_t shift_in_prev(uint64_t m, uint64_t prev)
{
    return m << 1 | prev >> 63;
}

static inline uint64_t shift_in_next(uint64_t m, uint64_t next, int k)
{
    return m >> k | next << (64 - k);
}

/* The first bytes of those spaces that are the last ones before something else; spaces of c and
 * nonspace, what is none, of c and of x behind it, are as the caller wants them. */
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

/* Contractions say where pieces begin, in this block and the next one. */
struct pending_contractions {
    uint64_t set, clear; /* for the block to come */
};

/* A contraction of len bytes at bit i of a block whose pieces begin at b: one begins behind it and
 * none with its second byte. */
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

#endif
