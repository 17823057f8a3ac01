/*
 * wordcache.c - a word is stored in one of MEG_WORD_PROBES neighboring buckets, each of which has two entries.  A new
 * word is stored in its home bucket.  A word found in another bucket is moved back to its home bucket.  The table
 * begins small, since a small table fits in the CPU caches.  As words are added, the number of buckets is doubled, up
 * to MAX_BUCKETS.  The kernel commits no memory for pages of the table that were never written.
 */
#include "tokenizer/wordcache.h"
#include "base/hash.h"
#include "base/mem.h"

enum {
    MIN_BUCKETS = 1 << 15, /* 2 MiB */
    MAX_BUCKETS = 1 << 19,
    OVERFLOW_SIZE = 3 << 20, /* number of int32 elements */
    MAX_CACHED_BYTES = 1024  /* limit on the bytes, and on the ids, of a cached word */
};

void meg_wordcache_init(struct meg_wordcache *c)
{
    const size_t words = 2 * MAX_BUCKETS * sizeof *c->word;
    const size_t overflow =
        (OVERFLOW_SIZE + MEG_WORD_LINE_IDS) * sizeof *c->overflow; /* padded for copies and prefetches */
    struct meg_err e;

    if (meg_arena_init(&c->arena, "word cache", words + overflow, &e) < 0)
        meg_die_err(&e);
    c->word = meg_arena_alloc(&c->arena, words, 64);
    c->overflow = meg_arena_alloc(&c->arena, overflow, 64);
    c->mask = MIN_BUCKETS - 1;
    c->nwords = c->noverflow = 0;
}

void meg_wordcache_free(struct meg_wordcache *c)
{
    meg_arena_free(&c->arena);
}

void meg_word_key_long(uint64_t key[2], const char *s, int64_t n)
{
    key[0] = meg_xxh3_64(s, (size_t)n);
    key[1] = (uint64_t)n | (uint64_t)0xFF << 56;
}

static struct meg_wordcache_entry *find_in_bucket(struct meg_wordcache_entry *bucket, const uint64_t key[2])
{
    return meg_word_has_key(&bucket[0], key) ? &bucket[0] : meg_word_has_key(&bucket[1], key) ? &bucket[1] : NULL;
}

/*
 * Move the word of entry e to the second entry of its home bucket, which a lookup probes before other buckets.  Move
 * the word that was there to e.  Return the entry that now contains the word of e.
 */
static struct meg_wordcache_entry *move_to_home_bucket(struct meg_wordcache_entry *e, struct meg_wordcache_entry *home)
{
    struct meg_wordcache_entry word = *e;

    *e = home[1];
    home[1] = word;
    return &home[1];
}

const struct meg_wordcache_entry *meg_wordcache_find_slow(struct meg_wordcache *c, const struct meg_wordcache_lookup *w)
{
    struct meg_wordcache_entry *e = NULL;
    const int32_t *ids;
    int64_t nids;
    int k = 0;

    for (; k < MEG_WORD_PROBES && !e; k++)
        e = find_in_bucket(meg_word_probe(c, w->bucket, k), w->key);
    if (!e)
        return NULL;
    if (w->n > MEG_WORD_BYTES) {
        nids = meg_word_ids(c, e, &ids);
        if (memcmp(ids + nids, w->s, (size_t)w->n) != 0)
            return NULL;
    }
    return k > 1 ? move_to_home_bucket(e, w->bucket) : e;
}

static bool is_free(const struct meg_wordcache_entry *e)
{
    return e->key[1] == 0;
}

/*
 * Return an entry for an old word that a new word displaces from bucket `home`: a free entry of a neighboring bucket
 * or, if these buckets are full, an entry to overwrite.
 */
static struct meg_wordcache_entry *free_entry_near(struct meg_wordcache *c, const struct meg_wordcache_entry *home)
{
    unsigned clock = c->evict_clock++;

    for (int k = 1; k < MEG_WORD_PROBES; k++) {
        struct meg_wordcache_entry *bucket = meg_word_probe(c, home, k);

        if (is_free(&bucket[0]) || is_free(&bucket[1]))
            return is_free(&bucket[0]) ? &bucket[0] : &bucket[1];
    }
    return meg_word_probe(c, home, 1 + (int)(clock / 2 % (MEG_WORD_PROBES - 1))) + clock % 2;
}

/*
 * Double the number of buckets.  A word keeps its bucket or moves to the same offset in the new half.  A lookup that
 * was started before this call may not find its word.
 */
static void grow(struct meg_wordcache *c)
{
    const uint64_t nbuckets = c->mask + 1;

    for (struct meg_wordcache_entry *e = c->word; e < c->word + 2 * nbuckets; e++) {
        if (!is_free(e) && (meg_word_hash(e->key) & nbuckets)) {
            e[2 * nbuckets] = *e;
            *e = (struct meg_wordcache_entry){ 0 };
        }
    }
    c->mask = 2 * nbuckets - 1;
}

/*
 * Allocate n elements of the overflow array and return the index of the first.  If the array is full, remove all words
 * from the cache.
 */
static int32_t alloc_overflow(struct meg_wordcache *c, int64_t n)
{
    if (c->noverflow + n > OVERFLOW_SIZE) {
        memset(c->word, 0, 2 * (c->mask + 1) * sizeof *c->word);
        c->nwords = c->noverflow = 0;
    }
    c->noverflow += (int32_t)n;
    return c->noverflow - (int32_t)n;
}

void meg_wordcache_add(struct meg_wordcache *c, const char *s, int64_t n, const int32_t *ids, int64_t nids,
                       uint16_t tag)
{
    const int64_t nbytes = n > MEG_WORD_BYTES ? n : 0;
    struct meg_wordcache_entry new = { .n = (uint16_t)nids, .tag = tag };
    struct meg_wordcache_lookup w;

    if (n > MAX_CACHED_BYTES || nids > MAX_CACHED_BYTES)
        return;
    if (nbytes > 0 || nids > MEG_WORD_IDS) {
        new.n += MEG_WORD_OUT_OF_LINE;
        new.offset = alloc_overflow(c, nids + (nbytes + 3) / 4);
        memcpy(c->overflow + new.offset, ids, (size_t)nids * sizeof *ids);
        memcpy(c->overflow + new.offset + nids, s, (size_t)nbytes);
    } else {
        memcpy(new.id, ids, (size_t)nids * sizeof *ids);
    }
    if (c->nwords++ > c->mask / 2 && c->mask < MAX_BUCKETS - 1)
        grow(c);
    meg_wordcache_prefetch(c, &w, s, n, s + n);
    memcpy(new.key, w.key, sizeof new.key);
    if (!is_free(&w.bucket[0])) {
        if (!is_free(&w.bucket[1]))
            *free_entry_near(c, w.bucket) = w.bucket[1];
        w.bucket[1] = w.bucket[0];
    }
    w.bucket[0] = new;
}

int64_t meg_wordcache_get(struct meg_wordcache *c, const char *s, int64_t n, const int32_t **ids)
{
    const struct meg_wordcache_entry *e;
    struct meg_wordcache_lookup w;

    meg_wordcache_prefetch(c, &w, s, n, s + n);
    meg_wordcache_prefetch_rest(c, &w, 1);
    e = meg_wordcache_find(c, &w);
    return e ? meg_word_ids(c, e, ids) : 0;
}
