/*
 * char_class_simd.h - a number below four, its kind, for each character outside ASCII that begins in 64 bytes of
 * well-formed UTF-8, from a table of U+0000..U+FFFF.
 */
#ifndef MEG_UNICODE_CHAR_CLASS_SIMD_H
#define MEG_UNICODE_CHAR_CLASS_SIMD_H

#include <stdint.h>

enum {
    MEG_CLASS_TABLE_BYTES = 0x10000 + 3, /* bytes of a table: a code point's kind each, and three that do not count */
    MEG_CLASS_TEXT_BYTES = 64 + 3        /* bytes of a text, so that the last character ends among them */
};

/* Bit i: of the character that begins at byte i. */
struct meg_class_masks {
    uint64_t bit[2]; /* of its kind; nothing where it is wide */
    uint64_t wide;   /* it is above U+FFFF */
};

/* The kinds of the characters that begin with the bytes `first` of those at s, all of them outside ASCII. */
typedef struct meg_class_masks meg_class_masks_fn(const unsigned char table[MEG_CLASS_TABLE_BYTES], const char *s,
                                                  uint64_t first);

/* The ways of doing that which this machine has, the best first; returns how many. */
int meg_class_masks_variants(meg_class_masks_fn *way[2]);

#endif
