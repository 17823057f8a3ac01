/*
 * wordcache.h - word cache: a hash table that maps words (pre-tokens) to their ids, since most words of a text have
 * occurred before.  The memory of a cache is bounded.  If the buckets for a new word are full, an old word in these
 * buckets is evicted.  If the overflow array is full, all words are evicted.  Only one thread may use a cache.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include "base/mem.h"

enum {
    MEG_WORD_BYTES = 15, /* maximum number of bytes in a short word; longer words are called long */
    MEG_WORD_IDS = 3,    /* maximum number of ids in an entry; more ids, and the ids of long words, are in `overflow` */
    MEG_WORD_OUT_OF_LINE = 1 << 15 /* flag in n: the ids of the entry are in the overflow array */
};

/*
 * A cached word.  The key of a short word consists of its bytes, zero padding, and its length in the last byte.  The
 * key of a long word consists of a hash, its length, and 0xFF in the last byte.  Two entries form a bucket, which is
 * one cache line.
 */
struct meg_wordcache_entry {
    uint64_t key[2];
    union {
        int32_t id[MEG_WORD_IDS];
        int32_t offset; /* index of the ids in `overflow`; for a long word, its bytes follow the ids */
    };
    uint16_t n, tag; /* n: number of ids, with the flag; tag: value that the tokenizer chooses */
};

struct meg_wordcache {
    struct meg_arena arena;           /* allocator of the arrays */
    struct meg_wordcache_entry *word; /* [2 * (mask + 1)]; mask + 1 is the number of buckets, a power of two */
    uint64_t mask, nwords;
    int32_t *overflow; /* ids and bytes that do not fit in an entry */
    int32_t noverflow;
    unsigned evict_clock; /* number of words moved out of a full home bucket; selects the entry to evict */
};
enum {
    MEG_WORD_PROBES = 4,   /* buckets that may contain a word: its home bucket and three neighbors */
    MEG_WORD_LINE_IDS = 16 /* ids per cache line; two lines of the overflow array are prefetched */
};

void meg_wordcache_init(struct meg_wordcache *c);
void meg_wordcache_free(struct meg_wordcache *c);

/* The lookup of a word, from meg_wordcache_prefetch to meg_wordcache_find. */
struct meg_wordcache_lookup {
    uint64_t key[2];
    struct meg_wordcache_entry *bucket;      /* home bucket of the word */
    const struct meg_wordcache_entry *entry; /* entry with this key in the home bucket; if none, second entry there */
    const char *s;
    int64_t n;
};

/* Compute the key of a long word. */
void meg_word_key_long(uint64_t key[2], const char *s, int64_t n);

/* Compute the key of a short word of n bytes.  16 bytes at s must be readable. */
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

/*
 * Begin the lookup of the word of n >= 1 bytes at s: compute the key of the word, and prefetch the home bucket of the
 * word.  The bytes before `end` must be readable.  The next calls are meg_wordcache_prefetch_rest and
 * meg_wordcache_find.
 */
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

/* Return the k-th bucket that may contain a word; bucket 0 is the home bucket. */
static inline struct meg_wordcache_entry *meg_word_probe(const struct meg_wordcache *c,
                                                         const struct meg_wordcache_entry *home, int k)
{
    return c->word + ((home - c->word) ^ (2 * k));
}

static inline bool meg_word_has_key(const struct meg_wordcache_entry *e, const uint64_t key[2])
{
    return ((e->key[0] ^ key[0]) | (e->key[1] ^ key[1])) == 0;
}

/*
 * Continue n lookups after meg_wordcache_prefetch.  If a word is not in its home bucket, prefetch the neighboring
 * buckets.  If a word is in its home bucket and its ids are in the overflow array, prefetch the first two cache lines
 * of the ids.
 */
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

/*
 * Return the entry of a word, or NULL if the word is not cached.  The entry is valid until the next find or add.  The
 * slow variant handles long words and words that are not in their home bucket.
 */
const struct meg_wordcache_entry *meg_wordcache_find_slow(struct meg_wordcache *c,
                                                          const struct meg_wordcache_lookup *w);
static inline const struct meg_wordcache_entry *meg_wordcache_find(struct meg_wordcache *c,
                                                                   const struct meg_wordcache_lookup *w)
{
    return meg_word_has_key(w->entry, w->key) && w->n <= MEG_WORD_BYTES ? w->entry : meg_wordcache_find_slow(c, w);
}

/* Set *ids to the ids of an entry, valid until the next find or add, and return the number of ids. */
static inline int64_t meg_word_ids(const struct meg_wordcache *c, const struct meg_wordcache_entry *e,
                                   const int32_t **ids)
{
    *ids = e->n <= MEG_WORD_IDS ? e->id : c->overflow + e->offset;
    return e->n % MEG_WORD_OUT_OF_LINE;
}

/*
 * Copy the n ids of an entry to ids, and return n.  Elements after the n ids are overwritten.  Therefore, the capacity
 * of ids must be at least n + MEG_WORD_IDS, or MEG_WORD_IDS + 1 if n is 0.
 */
static inline int64_t meg_word_copy(const struct meg_wordcache *c, const struct meg_wordcache_entry *e, int32_t *ids)
{
    enum { AT_ONCE = MEG_WORD_IDS + 1 }; /* in an entry, n and tag follow the ids */
    const int32_t *from;
    int64_t n = meg_word_ids(c, e, &from);

    memcpy(ids, from, AT_ONCE * sizeof *ids);
    for (int64_t i = AT_ONCE; i < n; i += AT_ONCE)
        memcpy(ids + i, from + i, AT_ONCE * sizeof *ids);
    return n;
}

/* Add a word of n >= 1 bytes and its ids.  Words of more than 1,024 bytes or ids are not cached. */
void meg_wordcache_add(struct meg_wordcache *c, const char *s, int64_t n, const int32_t *ids, int64_t nids,
                       uint16_t tag);

/*
 * Look up a word and return the number of its ids, or 0 if the word is not cached.  *ids points to the ids until the
 * next get or add.
 */
int64_t meg_wordcache_get(struct meg_wordcache *c, const char *s, int64_t n, const int32_t **ids);
