/*
 * A word is in one of MEG_WORD_PROBES neighbouring pairs of entries, the newest in their own and those that
 * are asked for back in it.  The table doubles while words come: a small one stays in the caches, and memory
 * that is never touched costs nothing.
 */
#include "tokenizer/wordcache.h"

#include "base/hash.h"
#include "base/mem.h"

enum {
    FEWEST_PAIRS = 1 << 15, /* 2 MiB of entries */
    MAX_BUCKETS = 1 << 19,
    MORE = 3 << 20,         /* ids */
    MAX_CACHED_BYTES = 1024 /* longer words are not worth their room */
};

void meg_wordcache_init(struct meg_wordcache *c)
{
    const size_t words = 2 * MAX_BUCKETS * sizeof *c->word;
    const size_t more = (MORE + MEG_WORD_LINE_IDS) * sizeof *c->overflow; /* copied in fours, fetched in lines */
    struct meg_err e;

    if (meg_arena_init(&c->arena, "word cache", words + more, &e) < 0)
        meg_die_err(&e);
    c->word = meg_arena_alloc(&c->arena, words, 64);
    c->overflow = meg_arena_alloc(&c->arena, more, 64);
    c->mask = FEWEST_PAIRS - 1;
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

static struct meg_wordcache_entry *find_in_bucket(struct meg_wordcache_entry *pair, const uint64_t key[2])
{
    return meg_word_has_key(&pair[0], key) ? &pair[0] : meg_word_has_key(&pair[1], key) ? &pair[1] : NULL;
}

/* A word that is asked for comes back to its own pair, where it is found sooner. */
static struct meg_wordcache_entry *move_to_home_bucket(struct meg_wordcache_entry *e, struct meg_wordcache_entry *own)
{
    struct meg_wordcache_entry word = *e;

    *e = own[1];
    own[1] = word;
    return &own[1];
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

/* Where a word goes that leaves its own pair: what is free in the others, or any entry of them. */
static struct meg_wordcache_entry *free_entry_near(struct meg_wordcache *c, const struct meg_wordcache_entry *own)
{
    unsigned any = c->evict_clock++;

    for (int k = 1; k < MEG_WORD_PROBES; k++) {
        struct meg_wordcache_entry *pair = meg_word_probe(c, own, k);

        if (is_free(&pair[0]) || is_free(&pair[1]))
            return is_free(&pair[0]) ? &pair[0] : &pair[1];
    }
    return meg_word_probe(c, own, 1 + (int)(any / 2 % (MEG_WORD_PROBES - 1))) + any % 2;
}

/* Twice as many pairs: a word stays where it is, or goes as far into the new half.  One that is being looked up
 * may then not be found. */
static void grow(struct meg_wordcache *c)
{
    const uint64_t npairs = c->mask + 1;

    for (struct meg_wordcache_entry *e = c->word; e < c->word + 2 * npairs; e++) {
        if (!is_free(e) && (meg_word_hash(e->key) & npairs)) {
            e[2 * npairs] = *e;
            *e = (struct meg_wordcache_entry){ 0 };
        }
    }
    c->mask = 2 * npairs - 1;
}

/* Room for ids and bytes that are not in an entry.  Where there is none all words are forgotten. */
static int32_t alloc_overflow(struct meg_wordcache *c, int64_t n)
{
    if (c->noverflow + n > MORE) {
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
