/*
 * wordcache.h - what the pieces seen so far were encoded to: nearly every word of a text has been
 * seen before.  Bounded memory; of the words that want one place an old one goes.  One thread's own.
 */
#ifndef MEG_TOKENIZER_WORDCACHE_H
#define MEG_TOKENIZER_WORDCACHE_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/mem.h"

enum {
    MEG_WORD_BYTES = 15,           /* a short word has at most so many bytes; the others are long */
    MEG_WORD_IDS = 3,              /* a short word's ids, up to so many, stand in its entry */
    MEG_WORD_OUT_OF_LINE = 1 << 15 /* added to their number where they do not */
};

/*
 * The entry of a word.  Key of a short one: its bytes, zeros, and its length in the last byte; of a
 * long one: a hash and its length, the last byte all ones.  Two entries share a cache line.
 */
struct meg_wordcache_entry {
    uint64_t key[2];
    union {
        int32_t id[MEG_WORD_IDS];
        int32_t offset; /* in more: the ids and, of a long word, its bytes */
    };
    uint16_t n, tag; /* tag: whatever the tokenizer wants to know of it */
};

struct meg_wordcache {
    struct meg_arena arena;           /* holds the others */
    struct meg_wordcache_entry *word; /* [mask + 1] pairs of entries, a power of two */
    uint64_t mask, nwords;
    int32_t *overflow;
    int32_t noverflow;
    unsigned evict_clock; /* words that went from their own pair to another one */
};
enum {
    MEG_WORD_PROBES = 4,   /* neighbouring pairs where a word may be */
    MEG_WORD_LINE_IDS = 16 /* ids in a cache line; of what is not in an entry, two lines are fetched ahead */
};

void meg_wordcache_init(struct meg_wordcache *c);
void meg_wordcache_free(struct meg_wordcache *c);

/* A word to be looked up. */
struct meg_wordcache_lookup {
    uint64_t key[2];
    struct meg_wordcache_entry *bucket;      /* where it is sought first */
    const struct meg_wordcache_entry *entry; /* of the pair, where it seems to be */
    const char *s;
    int64_t n;
};

/* The key of a long word. */
void meg_word_key_long(uint64_t key[2], const char *s, int64_t n);

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

static inline uint64_t meg_word_hash(const uint64_t key[2])
{
    unsigned __int128 p = (unsigned __int128)(key[0] ^ 0x9E3779B97F4A7C15u) * (key[1] ^ 0xD6E8FEB86659FD93u);

    return (uint64_t)p ^ (uint64_t)(p >> 64);
}

/* Begin to look up the word of n >= 1 bytes at s: its entry is on the way to the processor when this
 * returns.  What is before end may be read.  Then meg_wordcache_prefetch_rest, then meg_wordcache_find. */
static inline void meg_wordcache_prefetch(const struct meg_wordcache *c, struct meg_wordcache_lookup *w, const char *s,
                                          int64_t n, const char *end)
{
    if (n > MEG_WORD_BYTES) {
        meg_word_key_long(w->key, s, n);
    } else if (end - s >= 16) {
        meg_word_key(w->key, s, n);
    } else {
        char last[16] = { 0 };

        memcpy(last, s, (size_t)n);
        meg_word_key(w->key, last, n);
    }
    w->bucket = c->word + 2 * (meg_word_hash(w->key) & c->mask);
    w->s = s;
    w->n = n;
    __builtin_prefetch(w->bucket);
}

/* The k-th pair where a word may be: 0 is its own. */
static inline struct meg_wordcache_entry *meg_word_probe(const struct meg_wordcache *c,
                                                         const struct meg_wordcache_entry *own, int k)
{
    return c->word + ((own - c->word) ^ (2 * k));
}

static inline bool meg_word_has_key(const struct meg_wordcache_entry *e, const uint64_t key[2])
{
    return ((e->key[0] ^ key[0]) | (e->key[1] ^ key[1])) == 0;
}

/* Go on with the words [n] whose pairs have come: now what else is needed of them is on the way. */
static inline void meg_wordcache_prefetch_rest(const struct meg_wordcache *c, struct meg_wordcache_lookup *w, int n)
{
    for (; n-- > 0; w++) {
        w->entry = w->bucket + !meg_word_has_key(w->bucket, w->key);
        if (!meg_word_has_key(w->entry, w->key)) {
            for (int k = 1; k < MEG_WORD_PROBES; k++)
                __builtin_prefetch(meg_word_probe(c, w->bucket, k));
        } else if (w->entry->n > MEG_WORD_IDS) {
            __builtin_prefetch(c->overflow + w->entry->offset);
            __builtin_prefetch(c->overflow + w->entry->offset + MEG_WORD_LINE_IDS);
        }
    }
}

/* The entry of a word, valid until the next is found or added; NULL when there is none.  The second is for what
 * is no short word, or not where it seemed to be. */
const struct meg_wordcache_entry *meg_wordcache_find_slow(struct meg_wordcache *c,
                                                          const struct meg_wordcache_lookup *w);
static inline const struct meg_wordcache_entry *meg_wordcache_find(struct meg_wordcache *c,
                                                                   const struct meg_wordcache_lookup *w)
{
    return meg_word_has_key(w->entry, w->key) && w->n <= MEG_WORD_BYTES ? w->entry : meg_wordcache_find_slow(c, w);
}

/* The ids of an entry, in place until the next is added; returns their number. */
static inline int64_t meg_word_ids(const struct meg_wordcache *c, const struct meg_wordcache_entry *e,
                                   const int32_t **ids)
{
    *ids = e->n <= MEG_WORD_IDS ? e->id : c->overflow + e->offset;
    return e->n % MEG_WORD_OUT_OF_LINE;
}

/* Copy them to ids, where there is room for MEG_WORD_IDS more, and one if there are none, which may be
 * written over; returns their number. */
static inline int64_t meg_word_copy(const struct meg_wordcache *c, const struct meg_wordcache_entry *e, int32_t *ids)
{
    enum { AT_ONCE = MEG_WORD_IDS + 1 }; /* behind the ids of an entry is its n */
    const int32_t *from;
    int64_t n = meg_word_ids(c, e, &from);

    memcpy(ids, from, AT_ONCE * sizeof *ids);
    for (int64_t i = AT_ONCE; i < n; i += AT_ONCE)
        memcpy(ids + i, from + i, AT_ONCE * sizeof *ids);
    return n;
}

/* Remember a word of n >= 1 bytes with its ids; one that is much longer than words are is not. */
void meg_wordcache_add(struct meg_wordcache *c, const char *s, int64_t n, const int32_t *ids, int64_t nids,
                       uint16_t tag);

/* The ids of a word, in place until the next add; returns their number, 0 when it is not there. */
int64_t meg_wordcache_get(struct meg_wordcache *c, const char *s, int64_t n, const int32_t **ids);

#endif
