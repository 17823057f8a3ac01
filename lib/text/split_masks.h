/*
 * split_masks.h - a text 64 bytes at a time as bit masks, one bit a byte, all bytes of a character
 * alike: letters, numbers, spaces and what is none of them.  A split pattern is then a few shifts.
 * Private to split_*.c; all of it is compiled into each of them.
 */
#ifndef MEG_TEXT_SPLIT_MASKS_H
#define MEG_TEXT_SPLIT_MASKS_H

#include <stdint.h>
#include <string.h>
#ifdef __SSE2__
#    include <emmintrin.h>
#endif

#include "text/uclass.h"
#include "text/utf8.h"

struct masks {
    uint64_t letter, number, space, other;
    uint64_t blank; /* U+0020 */
    uint64_t eol;   /* \r and \n */
    uint64_t quote; /* U+0027 */
    uint64_t tail;  /* not the first byte of its character */
};

/* What of a text is still to be classified, and the character that the last block cut. */
struct masks_reader {
    const char *text;
    int64_t n, at;
    int nrest; /* bytes of that character */
    enum meg_uclass class;
    const unsigned char *table;
};

typedef unsigned char v16 __attribute__((vector_size(16)));

/* Bit i is the top bit of byte i; every byte is 0 or 255. */
static inline uint64_t bits_of(v16 m)
{
#ifdef __SSE2__
    return (uint64_t)(unsigned)_mm_movemask_epi8((__m128i)m);
#else
    static const v16 bit = { 1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128 };
    uint64_t w[2];
    v16 b = m & bit;

    memcpy(w, &b, 16);
    return (w[0] * 0x0101010101010101u >> 56) | (w[1] * 0x0101010101010101u >> 56 << 8);
#endif
}

/* Give the bytes [at, at + n) of a character their class; returns how many lie beyond the block. */
static inline int mark(struct masks *m, int at, int n, enum meg_uclass class)
{
    uint64_t bits = (((uint64_t)1 << n) - 1) << at;

    switch (class) {
    case MEG_U_LETTER:
        m->letter |= bits;
        break;
    case MEG_U_NUMBER:
        m->number |= bits;
        break;
    case MEG_U_SPACE:
        m->space |= bits;
        break;
    case MEG_U_OTHER:
        m->other |= bits;
        break;
    }
    return at + n > 64 ? at + n - 64 : 0;
}

/* The code point of a character outside ASCII, and its length. */
static inline int32_t read_high(const unsigned char *s, int *n)
{
    if (s[0] < 0xE0) {
        *n = 2;
        return (s[0] & 0x1F) << 6 | (s[1] & 0x3F);
    }
    if (s[0] < 0xF0) {
        *n = 3;
        return (s[0] & 0x0F) << 12 | (s[1] & 0x3F) << 6 | (s[2] & 0x3F);
    }
    *n = 4;
    return (s[0] & 0x07) << 18 | (s[1] & 0x3F) << 12 | (s[2] & 0x3F) << 6 | (s[3] & 0x3F);
}

/* Classify the characters outside ASCII of a block at s; high has their bytes. */
static void classify_high(struct masks_reader *r, const char *s, uint64_t high, struct masks *m)
{
    m->letter &= ~high;
    m->number &= ~high;
    m->space &= ~high;
    m->other &= ~high;
    if (r->nrest > 0) {
        uint64_t bits = ((uint64_t)1 << r->nrest) - 1;

        mark(m, 0, r->nrest, r->class);
        m->tail |= bits;
        high &= ~bits;
        r->nrest = 0;
    }
    while (high) {
        int at = __builtin_ctzll(high), n;
        int32_t cp = read_high((const unsigned char *)s + at, &n);
        uint64_t rest = (((uint64_t)2 << (n - 1)) - 2) << at;

        r->class = cp < 0x10000 ? (enum meg_uclass)r->table[cp] : meg_uclass(cp);
        r->nrest = mark(m, at, n, r->class);
        m->tail |= rest;
        high &= ~(rest | (uint64_t)1 << at);
    }
}

/* s has 64 bytes, and as many more as its last character needs. */
static inline void classify(struct masks_reader *r, const char *s, struct masks *m)
{
    uint64_t high = 0;

    memset(m, 0, sizeof *m);
    for (int k = 0; k < 64; k += 16) {
        v16 c, low;

        memcpy(&c, s + k, 16);
        low = c | 0x20;
        m->letter |= bits_of((v16)(low - 'a' < 26)) << k;
        m->number |= bits_of((v16)(c - '0' < 10)) << k;
        m->space |= bits_of((v16)((c - '\t' < 5) | (c == ' '))) << k;
        m->blank |= bits_of((v16)(c == ' ')) << k;
        m->eol |= bits_of((v16)((c == '\r') | (c == '\n'))) << k;
        m->quote |= bits_of((v16)(c == '\'')) << k;
        high |= bits_of((v16)(c > 0x7F)) << k;
    }
    m->other = ~(m->letter | m->number | m->space);
    if (high)
        classify_high(r, s, high, m);
}

/* The masks of the next block; zeros in and after the end. */
static inline void next_masks(struct masks_reader *r, struct masks *m)
{
    int64_t left = r->n - r->at;

    if (left >= 64) {
        classify(r, r->text + r->at, m);
    } else if (left > 0) {
        char end[64] = { 0 };

        memcpy(end, r->text + r->at, (size_t)left);
        classify(r, end, m);
        m->other &= ((uint64_t)1 << left) - 1;
    } else {
        memset(m, 0, sizeof *m);
    }
    r->at += 64;
}

/* Bit i of the result is bit i-1, or bit i+k, of the mask that prev or next continues. */
static inline uint64_t before(uint64_t m, uint64_t prev)
{
    return m << 1 | prev >> 63;
}

static inline uint64_t after(uint64_t m, uint64_t next, int k)
{
    return m >> k | next << (64 - k);
}

/* The first bytes of those spaces that are the last ones before something else; spaces of c and
 * solid, what is none, of c and of x behind it, are as the caller wants them. */
static inline uint64_t last_spaces(const struct masks *c, uint64_t space, uint64_t solid,
                                   const struct masks *x, uint64_t next_space, uint64_t next_solid)
{
    uint64_t end = space & after(solid, next_solid, 1), next_end = next_space & next_solid >> 1;
    uint64_t tail1 = after(c->tail, x->tail, 1), tail2 = after(c->tail, x->tail, 2);

    return (end | (tail1 & after(end, next_end, 1)) | (tail1 & tail2 & after(end, next_end, 2))) &
        space & ~c->tail;
}

static inline uint64_t solid_of(const struct masks *m)
{
    return m->letter | m->number | m->other;
}

/* Contractions say where pieces begin, in this block and the next one. */
struct contractions {
    uint64_t set, clear; /* for the block to come */
};

/* A contraction of len bytes at bit i of a block whose pieces begin at b: one begins behind it and
 * none with its second byte. */
static inline uint64_t contract(struct contractions *c, uint64_t b, int i, int len)
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
