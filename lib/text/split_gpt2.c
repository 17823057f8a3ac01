/*
 * The text is classified 64 bytes at a time into bit masks (letter, number, space, ...), all bytes
 * of a character alike; the pattern is then a few shifts.  A piece begins where the class
 * changes, except that one blank goes with what follows it, and that the last of several spaces
 * before something else is cut off from the others.  What asks for a look at single bytes is rare:
 * characters outside ASCII, to find their class, and contractions.
 */
#include "text/split.h"

#include <string.h>
#ifdef __SSE2__
#    include <emmintrin.h>
#endif

#include "text/uclass.h"
#include "text/utf8.h"

/* One bit a byte of a block of 64. */
struct masks {
    uint64_t letter, number, space, other;
    uint64_t blank; /* U+0020 */
    uint64_t quote; /* U+0027 */
    uint64_t tail;  /* not the first byte of its character */
};

/* A character that goes on in the next block. */
struct carry {
    int n;
    enum meg_uclass class;
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

/* Classify the characters outside ASCII of a block; high has their bytes. */
static void classify_high(const char *s, uint64_t high, struct masks *m, struct carry *carry,
                          const unsigned char *table)
{
    m->letter &= ~high;
    m->number &= ~high;
    m->space &= ~high;
    m->other &= ~high;
    if (carry->n > 0) {
        uint64_t bits = ((uint64_t)1 << carry->n) - 1;

        mark(m, 0, carry->n, carry->class);
        m->tail |= bits;
        high &= ~bits;
        carry->n = 0;
    }
    while (high) {
        int at = __builtin_ctzll(high);
        uint64_t rest;
        int32_t cp;
        int n = meg_utf8_step(s + at, 4, &cp);

        carry->class = cp < 0x10000 ? (enum meg_uclass)table[cp] : meg_uclass(cp);
        carry->n = mark(m, at, n, carry->class);
        rest = (((uint64_t)2 << (n - 1)) - 2) << at;
        m->tail |= rest;
        high &= ~(rest | (uint64_t)1 << at);
    }
}

/* s has 64 bytes, and as many more as its last character needs. */
static void classify(const char *s, struct masks *m, struct carry *carry,
                     const unsigned char *table)
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
        m->quote |= bits_of((v16)(c == '\'')) << k;
        high |= bits_of((v16)(c > 0x7F)) << k;
    }
    m->other = ~(m->letter | m->number | m->space);
    if (high)
        classify_high(s, high, m, carry, table);
}

/* Length of the contraction at s, which begins with a quote; 0 when there is none. */
static int contraction(const char *s, int64_t n)
{
    if (n >= 2 && (s[1] == 's' || s[1] == 't' || s[1] == 'm' || s[1] == 'd'))
        return 2;
    if (n >= 3 &&
        ((s[1] == 'r' && s[2] == 'e') || (s[1] == 'v' && s[2] == 'e') ||
         (s[1] == 'l' && s[2] == 'l')))
        return 3;
    return 0;
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

/* Piece starts of block c, contractions left out. */
static uint64_t starts_of(const struct masks *p, const struct masks *c, const struct masks *x)
{
    uint64_t solid = c->letter | c->number | c->other,
             next_solid = x->letter | x->number | x->other;
    uint64_t changed = (c->letter & ~before(c->letter, p->letter)) |
        (c->number & ~before(c->number, p->number)) | (c->space & ~before(c->space, p->space)) |
        (c->other & ~before(c->other, p->other));
    uint64_t glued = before(c->blank, p->blank) & solid;
    /* the last byte of spaces before something else, then the first byte of that character */
    uint64_t end = c->space & after(solid, next_solid, 1), next_end = x->space & next_solid >> 1;
    uint64_t tail1 = after(c->tail, x->tail, 1), tail2 = after(c->tail, x->tail, 2);
    uint64_t last =
        (end | (tail1 & after(end, next_end, 1)) | (tail1 & tail2 & after(end, next_end, 2))) &
        c->space & ~c->tail;

    return (changed & ~glued) | last;
}

void meg_split_gpt2(const char *text, int64_t n, uint64_t *starts)
{
    const unsigned char *table = meg_uclass_table();
    struct masks prev = { 0 }, cur = { 0 }, next = { 0 };
    struct carry carry = { 0 };
    uint64_t set = 0, clear = 0; /* what a contraction says about the block to come */

    for (int64_t w = -1; w < n / 64 + 1; w++) {
        int64_t at = (w + 1) * 64;

        prev = cur;
        cur = next;
        if (at + 64 <= n) {
            classify(text + at, &next, &carry, table);
        } else if (at < n) {
            char end[64] = { 0 };
            uint64_t used = ((uint64_t)1 << (n - at)) - 1;

            memcpy(end, text + at, (size_t)(n - at));
            classify(end, &next, &carry, table);
            next.other &= used;
        } else {
            memset(&next, 0, sizeof next);
        }
        if (w >= 0) {
            uint64_t b = (starts_of(&prev, &cur, &next) & ~clear) | set;
            uint64_t quotes =
                cur.quote & ~before(cur.other, prev.other) & ~before(cur.blank, prev.blank);

            set = clear = 0;
            for (; quotes; quotes &= quotes - 1) {
                int i = __builtin_ctzll(quotes);
                int64_t left = n - (w * 64 + i);
                int len = contraction(text + w * 64 + i, left);

                if (len == 0)
                    continue;
                if (i + 1 < 64)
                    b &= ~((uint64_t)1 << (i + 1));
                else
                    clear = 1;
                if (i + len < 64)
                    b |= (uint64_t)1 << (i + len);
                else
                    set |= (uint64_t)1 << (i + len - 64);
            }
            starts[w] = b;
        }
    }
    starts[n / 64] |= (uint64_t)1 << n % 64;
}
