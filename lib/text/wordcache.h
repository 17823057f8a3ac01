/*
 * wordcache.h - what the pieces seen so far were encoded to: nearly every word of a text has been
 * seen before.  Bounded memory; of two words that want one place the older goes.  One thread's own.
 */
#ifndef MEG_TEXT_WORDCACHE_H
#define MEG_TEXT_WORDCACHE_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/mem.h"

enum {
    MEG_WORD_BYTES = 15, /* a short word has at most so many bytes */
    MEG_WORD_IDS = 3     /* and at most so many ids; the others are long */
};

/* A short word: its bytes, zeros, and its length in the last byte.  Two entries share a cache line. */
struct meg_word {
    uint64_t key[2];
    uint16_t n, tag; /* tag: whatever the tokenizer wants to know of it */
    int32_t id[MEG_WORD_IDS];
};

struct meg_wordcache {
    struct meg_arena arena; /* holds the others */
    struct meg_word *word;  /* pairs of entries */
    struct meg_longword *longword;
    char *bytes; /* of long words: length, number of ids, ids, bytes */
    uint32_t nbytes;
};
enum { MEG_WORD_PAIRS = 1 << 18 }; /* 8 MiB of short words */

void meg_wordcache_init(struct meg_wordcache *c);
void meg_wordcache_free(struct meg_wordcache *c);

/* The key of the n <= MEG_WORD_BYTES bytes at s, of which 16 may be read. */
static inline void meg_word_key(uint64_t key[2], const char *s, int64_t n)
{
    static const uint64_t mask[MEG_WORD_BYTES + 1][2] = {
#define ONES(k) (UINT64_MAX >> (64 - 8 * (k)))
        { 0, 0 },
        { ONES(1), 0 },
        { ONES(2), 0 },
        { ONES(3), 0 },
        { ONES(4), 0 },
        { ONES(5), 0 },
        { ONES(6), 0 },
        { ONES(7), 0 },
        { ONES(8), 0 },
        { ONES(8), ONES(1) },
        { ONES(8), ONES(2) },
        { ONES(8), ONES(3) },
        { ONES(8), ONES(4) },
        { ONES(8), ONES(5) },
        { ONES(8), ONES(6) },
        { ONES(8), ONES(7) }
#undef ONES
    };

    memcpy(key, s, 16);
    key[0] &= mask[n][0];
    key[1] = (key[1] & mask[n][1]) | (uint64_t)n << 56;
}

/* The two entries where a short word may be. */
static inline struct meg_word *meg_wordcache_pair(const struct meg_wordcache *c,
                                                  const uint64_t key[2])
{
    unsigned __int128 p =
        (unsigned __int128)(key[0] ^ 0x9E3779B97F4A7C15u) * (key[1] ^ 0xD6E8FEB86659FD93u);

    return c->word + 2 * (((uint64_t)p ^ (uint64_t)(p >> 64)) % MEG_WORD_PAIRS);
}

/* The entry of a short word, one of the pair; NULL when it is neither.  One branch, often taken. */
static inline const struct meg_word *meg_wordcache_find(const struct meg_word *pair,
                                                        const uint64_t key[2])
{
    const struct meg_word *w = pair + (((pair->key[0] ^ key[0]) | (pair->key[1] ^ key[1])) != 0);

    return ((w->key[0] ^ key[0]) | (w->key[1] ^ key[1])) == 0 ? w : NULL;
}

/* Remember a word with its ids, as short or long one. */
void meg_wordcache_add(struct meg_wordcache *c, const char *s, int64_t n, const int32_t *ids,
                       int64_t nids, uint16_t tag);

/* The ids and the tag (where asked for) of a long word, ids in place until the next add; returns their
 * number, 0 when not there. */
int64_t meg_wordcache_find_long(const struct meg_wordcache *c, const char *s, int64_t n,
                                const int32_t **ids, uint16_t *tag);

/* The ids of a word of any length, in place until the next add; returns their number, 0 when it is not
 * there. */
int64_t meg_wordcache_get(const struct meg_wordcache *c, const char *s, int64_t n,
                          const int32_t **ids);

#endif
