/* utf8.c - UTF-8: validation, decoding and encoding, and replacement of invalid bytes by U+FFFD. */
#include "unicode/utf8.h"
#include <stdbool.h>
#include <string.h>
#include "unicode/simd.h"

int meg_utf8_decode(const char *text, int64_t n, int32_t *cp)
{
    const unsigned char *s = (const unsigned char *)text;
    int32_t c = s[0];
    int len, lo = 0x80, hi = 0xBF; /* lo, hi: range of the second byte */

    *cp = 0xFFFD;
    if (c < 0x80) {
        *cp = c;
        return 1;
    } else if (c >= 0xC2 && c <= 0xDF) {
        len = 2;
        c &= 0x1F;
    } else if (c >= 0xE0 && c <= 0xEF) {
        len = 3;
        lo = c == 0xE0 ? 0xA0 : lo;
        hi = c == 0xED ? 0x9F : hi;
        c &= 0x0F;
    } else if (c >= 0xF0 && c <= 0xF4) {
        len = 4;
        lo = c == 0xF0 ? 0x90 : lo;
        hi = c == 0xF4 ? 0x8F : hi;
        c &= 0x07;
    } else {
        return -1;
    }
    for (int k = 1; k < len; k++) {
        if (k >= n || s[k] < lo || s[k] > hi)
            return -k;
        c = c << 6 | (s[k] & 0x3F);
        lo = 0x80;
        hi = 0xBF;
    }
    *cp = c;
    return len;
}

int meg_utf8_encode(char out[4], int32_t cp)
{
    unsigned char *s = (unsigned char *)out;
    int len = cp < 0x80 ? 1 : cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
    static const unsigned char lead[5] = { 0, 0, 0xC0, 0xE0, 0xF0 };

    for (int k = len - 1; k > 0; k--) {
        s[k] = (unsigned char)(0x80 | (cp & 0x3F));
        cp >>= 6;
    }
    s[0] = (unsigned char)(lead[len] | cp);
    return len;
}

/* Return the length of the ASCII prefix of s [n], rounded down to a multiple of 32. */
static int64_t ascii_prefix(const char *s, int64_t n)
{
    int64_t i = 0;

    for (; i + 32 <= n; i += 32) {
        uint64_t w[4];

        memcpy(w, s + i, 32);
        if ((w[0] | w[1] | w[2] | w[3]) & 0x8080808080808080u)
            break;
    }
    return i;
}

/* Constraints that a block of 64 bytes imposes on the bytes after it.  Bit i of a mask refers to byte i. */
struct carry {
    uint64_t continuation;   /* bytes that must be continuation bytes */
    uint64_t e0, ed, f0, f4; /* bytes that follow lead byte E0, ED, F0 or F4 and so have a restricted range */
};

static inline uint64_t shift_in(uint64_t m, uint64_t *carry)
{
    uint64_t r = m << 1 | *carry;

    *carry = m >> 63;
    return r;
}

/* Return whether 64 bytes are valid after the previous blocks, and update the carry for the next block. */
static bool is_valid_block(const char *s, struct carry *x)
{
    uint64_t continuation = 0, two = 0, three = 0, four = 0, never = 0, to8f = 0, to9f = 0;
    uint64_t e0 = 0, ed = 0, f0 = 0, f4 = 0, must;

    for (int k = 0; k < 64; k += 16) {
        v16 c;

        memcpy(&c, s + k, 16);
        continuation |= meg_movemask((v16)((c & 0xC0) == 0x80)) << k;
        two |= meg_movemask((v16)(c >= 0xC0)) << k; /* two: lead bytes of characters of two or more bytes */
        three |= meg_movemask((v16)(c >= 0xE0)) << k;
        four |= meg_movemask((v16)(c >= 0xF0)) << k;
        never |= meg_movemask((v16)((c > 0xF4) | ((c & 0xFE) == 0xC0))) << k;
        to8f |= meg_movemask((v16)((c & 0xF0) == 0x80)) << k;
        to9f |= meg_movemask((v16)((c & 0xE0) == 0x80)) << k;
        e0 |= meg_movemask((v16)(c == 0xE0)) << k;
        ed |= meg_movemask((v16)(c == 0xED)) << k;
        f0 |= meg_movemask((v16)(c == 0xF0)) << k;
        f4 |= meg_movemask((v16)(c == 0xF4)) << k;
    }
    must = two << 1 | three << 2 | four << 3 | x->continuation;
    x->continuation = two >> 63 | three >> 62 | four >> 61;
    return ((must ^ continuation) | never | (shift_in(e0, &x->e0) & to9f) | (shift_in(ed, &x->ed) & ~to9f) |
            (shift_in(f0, &x->f0) & to8f) | (shift_in(f4, &x->f4) & ~to8f)) == 0;
}

/*
 * Return an offset in [i - 4, i] at which a character begins.  Decoding can resume at this offset.  The bytes before i
 * are valid, but the last character may continue at i.
 */
static int64_t char_start(const char *text, int64_t i)
{
    int64_t k = i;

    while (k > 0 && i - k < 3 && (text[k - 1] & 0xC0) == 0x80)
        k--;
    return k > 0 && (text[k - 1] & 0xC0) == 0xC0 ? k - 1 : i;
}

int64_t meg_utf8_find_invalid(const char *s, int64_t n)
{
    struct carry x = { 0 };
    int64_t i = 0;

    while (n - i >= 64) {
        if (x.continuation == 0)
            i += ascii_prefix(s + i, n - i);
        if (n - i < 64 || !is_valid_block(s + i, &x))
            break;
        i += 64;
    }
    for (i = char_start(s, i); i < n;) {
        int32_t cp;
        int len = meg_utf8_decode(s + i, n - i, &cp);

        if (len < 0)
            return i;
        i += len;
    }
    return -1;
}

void meg_utf8_add_replaced(struct meg_str *out, const char *s, int64_t n)
{
    while (n > 0) {
        int64_t bad = meg_utf8_find_invalid(s, n), nvalid = bad < 0 ? n : bad;
        int32_t cp;

        meg_str_add(out, s, (size_t)nvalid);
        s += nvalid;
        n -= nvalid;
        if (bad >= 0) {
            int len = -meg_utf8_decode(s, n, &cp);

            meg_str_add(out, "\xEF\xBF\xBD", 3);
            s += len;
            n -= len;
        }
    }
}
