/* utf8.h - UTF-8: validation, decoding and encoding, and replacement of invalid bytes by U+FFFD. */
#pragma once
#include <stdint.h>
#include <string.h>
#include "base/mem.h"

/*
 * meg_utf8_decode - decode the character at s, reading at most n >= 1 bytes
 * For a well-formed character (Unicode, table 3-7), sets *cp and returns the length of the character, 1 to 4.
 * Otherwise, sets *cp to 0xFFFD and returns minus the length of the maximal ill-formed subpart, -1 to -3.
 */
int meg_utf8_decode(const char *s, int64_t n, int32_t *cp);

/* Decode a character of valid UTF-8, and return its length in bytes. */
static inline int meg_utf8_decode_unchecked(const char *text, int32_t *cp)
{
    const unsigned char *s = (const unsigned char *)text;

    if (s[0] < 0x80) {
        *cp = s[0];
        return 1;
    }
    if (s[0] < 0xE0) {
        *cp = (s[0] & 0x1F) << 6 | (s[1] & 0x3F);
        return 2;
    }
    if (s[0] < 0xF0) {
        *cp = (s[0] & 0x0F) << 12 | (s[1] & 0x3F) << 6 | (s[2] & 0x3F);
        return 3;
    }
    *cp = (s[0] & 0x07) << 18 | (s[1] & 0x3F) << 12 | (s[2] & 0x3F) << 6 | (s[3] & 0x3F);
    return 4;
}

/* Return the length in bytes of a character of valid UTF-8 whose first byte is c. */
static inline int meg_utf8_length(unsigned char c)
{
    return c < 0x80 ? 1 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
}

/*
 * Decode the character that ends before s in valid UTF-8, and return a pointer to its first byte.  s must not be the
 * beginning of the text.
 */
static inline const char *meg_utf8_prev(const char *s, int32_t *cp)
{
    while ((*--s & 0xC0) == 0x80)
        ;
    meg_utf8_decode_unchecked(s, cp);
    return s;
}

/* Encode cp, which must be below 0x110000, and return its length in bytes, 1 to 4. */
int meg_utf8_encode(char out[4], int32_t cp);

/* Return the length of a byte order mark at the beginning of s [n]: 3, or 0 if there is none. */
static inline int meg_utf8_bom(const char *s, int64_t n)
{
    return n >= 3 && memcmp(s, "\xEF\xBB\xBF", 3) == 0 ? 3 : 0;
}

/* Return the offset of the first byte in s [n] that is not part of valid UTF-8, or -1 if there is none. */
int64_t meg_utf8_find_invalid(const char *s, int64_t n);

/* Append s [n], and replace each maximal ill-formed subpart by U+FFFD, as Python does with errors="replace". */
void meg_utf8_add_replaced(struct meg_str *out, const char *s, int64_t n);
