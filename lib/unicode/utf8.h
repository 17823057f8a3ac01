/* utf8.h - UTF-8: is it well-formed, the characters one by one, and U+FFFD for what is broken. */
#ifndef MEG_UNICODE_UTF8_H
#define MEG_UNICODE_UTF8_H

#include <stdint.h>
#include <string.h>

#include "base/mem.h"

/*
 * meg_utf8_decode - the character at s, of which n >= 1 bytes may be read.
 * Well-formed (Unicode table 3-7): its length, 1 to 4, and *cp.  Else minus the length of the
 * maximal ill-formed subpart, -1 to -3, and *cp = 0xFFFD.
 */
int meg_utf8_decode(const char *s, int64_t n, int32_t *cp);

/* The same of text that is known to be well-formed. */
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

/* The length of the character that begins with byte c, of such text. */
static inline int meg_utf8_length(unsigned char c)
{
    return c < 0x80 ? 1 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
}

/* The character that ends before s, which has one before it, of such text; returns where it begins. */
static inline const char *meg_utf8_prev(const char *s, int32_t *cp)
{
    while ((*--s & 0xC0) == 0x80)
        ;
    meg_utf8_decode_unchecked(s, cp);
    return s;
}

/* Bytes of a character in UTF-8, 1 to 4, written to out.  cp is below 0x110000. */
int meg_utf8_encode(char out[4], int32_t cp);

/* Bytes of the byte order mark that s [n] begins with: 3 or 0. */
static inline int meg_utf8_bom(const char *s, int64_t n)
{
    return n >= 3 && memcmp(s, "\xEF\xBB\xBF", 3) == 0 ? 3 : 0;
}

/* Length of the run of ASCII that s [n] begins with, rounded down to a multiple of 32. */
int64_t meg_utf8_ascii_prefix(const char *s, int64_t n);

/* Offset of the first byte that is not part of well-formed UTF-8; -1 when there is none. */
int64_t meg_utf8_find_invalid(const char *s, int64_t n);

/* Append s with each maximal ill-formed subpart replaced by U+FFFD. */
void meg_utf8_add_replaced(struct meg_str *out, const char *s, int64_t n);

#endif
