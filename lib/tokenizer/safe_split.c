/* safe_split.c - find safe split points: offsets at which a text can be split without changing its tokens. */
#include "tokenizer/safe_split.h"
#include <stdbool.h>

static uint16_t pair_at(const char *s)
{
    uint16_t pair;

    memcpy(&pair, s, 2);
    return pair;
}

/* Return true if the characters before s and at s have three bytes each. */
static bool is_3byte_pair(const char *s)
{
    return ((unsigned char)s[-3] & 0xF0) == 0xE0 && ((unsigned char)s[0] & 0xF0) == 0xE0;
}

static uint32_t hash_at(const char *s)
{
    uint64_t six = 0;

    memcpy(&six, s - 3, 6);
    return (uint32_t)(six * 0x9E3779B97F4A7C15u >> 46);
}

void meg_safe_split_init(struct meg_safe_split *s)
{
    memset(s, 0, sizeof *s);
    for (int left = 0; left < 256; left++) {
        for (int right = 0; right < 256; right++)
            s->is_safe[pair_at((const char[]){ (char)left, (char)right })] = (right & 0xC0) != 0x80;
    }
}

void meg_safe_split_add_token(struct meg_safe_split *s, const char *token, int64_t n)
{
    for (int64_t i = 1; i < n; i++) {
        uint32_t hash;

        if (((unsigned char)token[i] & 0xC0) == 0x80)
            continue;
        s->is_safe[pair_at(token + i - 1)] = 0;
        if (i >= 3 && n - i >= 3 && is_3byte_pair(token + i)) {
            hash = hash_at(token + i);
            s->joined_hash[hash / 64] |= (uint64_t)1 << hash % 64;
        }
    }
}

/* Return a mask of the safe split points before bytes 0 .. n-1, n <= 64.  text[-1] must be readable. */
static inline uint64_t safe_splits_of(const struct meg_safe_split *s, const char *text, int n)
{
    uint64_t bits = 0;

    for (int i = 0; i < n; i++)
        bits |= (uint64_t)s->is_safe[pair_at(text + i - 1)] << i;
    return bits;
}

/* Return true if any of n bytes begins a character of three or four bytes.  n is a multiple of 8. */
static bool has_3byte_char(const char *text, int n)
{
    uint64_t high = 0;

    for (int i = 0; i < n; i += 8) {
        uint64_t w;

        memcpy(&w, text + i, 8);
        high |= w & w << 1 & w << 2;
    }
    return high & 0x8080808080808080u;
}

/*
 * Return a mask of the safe split points between two characters of three bytes each: bit i, with from <= i < n, is set
 * if the text can be split before byte i.  is_safe is indexed by only one byte of each character; the hash of all six
 * bytes finds points that is_safe misses.
 */
static uint64_t safe_splits_3byte(const struct meg_safe_split *s, const char *text, int from, int n)
{
    uint64_t bits = 0;

    for (int i = from; i < n; i++) {
        uint32_t hash;

        if (!is_3byte_pair(text + i))
            continue;
        hash = hash_at(text + i);
        bits |= (uint64_t) !(s->joined_hash[hash / 64] >> hash % 64 & 1) << i;
    }
    return bits;
}

void meg_safe_split_find(const struct meg_safe_split *s, const char *text, int64_t n, uint64_t *mask)
{
    for (int64_t at = 0; at <= n; at += 64) {
        const char *block = text + at;
        int len = n - at < 64 ? (int)(n - at) : 64;
        uint64_t bits;

        if (at > 0 && len == 64)
            bits = safe_splits_of(s, block, 64);
        else if (at > 0)
            bits = safe_splits_of(s, block, len);
        else
            bits = len == 0 ? 1 : 1 | safe_splits_of(s, block + 1, len - 1) << 1;
        if (len < 64 || has_3byte_char(block, 64))
            bits |= safe_splits_3byte(s, block, at > 0 ? 0 : 3, len - 2);
        if (len < 64)
            bits |= (uint64_t)1 << len;
        mask[at / 64] = bits;
    }
}
