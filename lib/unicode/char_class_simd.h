/*
 * char_class_simd.h - look up the 2-bit classes of the non-ASCII characters in 64 bytes of UTF-8.  A table contains the
 * classes of U+0000..U+FFFF, and the result is a set of bit masks.  Uses SIMD where available.
 */
#pragma once
#include <stdint.h>

enum {
    MEG_CLASS_TABLE_BYTES = 0x10000 + 3, /* one class per code point, and 3 bytes of padding */
    MEG_CLASS_TEXT_BYTES = 64 + 3 /* bytes read from the text; the last character may extend 3 bytes beyond the 64 */
};

/* Bit i of each mask belongs to the character that begins at byte i. */
struct meg_class_masks {
    uint64_t class_bit[2]; /* bits 0 and 1 of the character's class; 0 for characters above U+FFFF */
    uint64_t non_bmp;      /* 1 for characters above U+FFFF */
};

/*
 * Look up the class of the character at s[i] for each bit i that is set in `starts`.  These characters must be
 * non-ASCII and valid UTF-8.
 */
typedef struct meg_class_masks meg_class_masks_fn(const unsigned char table[MEG_CLASS_TABLE_BYTES], const char *s,
                                                  uint64_t starts);

/* Set variant to the implementations that this CPU supports, fastest first, and return their number. */
int meg_class_masks_variants(meg_class_masks_fn *variant[2]);
