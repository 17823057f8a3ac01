#include "text/wordcache.h"

#include <stdlib.h>

#include "base/hash.h"
#include "base/mem.h"

enum {
    LONG_WORDS = 1 << 19,
    LONG_BYTES = 20 << 20,
    LONG_WORD_BYTES = 1024 /* longer ones are not worth their room */
};

struct meg_longword {
    uint32_t hash, at; /* in c->bytes; 0: none */
};

/* What stands at c->bytes + at, ids and bytes behind it. */
struct longhead {
    uint16_t nbytes, nids, tag, unused;
};

void meg_wordcache_init(struct meg_wordcache *c)
{
    const size_t words = 2 * MEG_WORD_PAIRS * sizeof *c->word;
    const size_t longwords = LONG_WORDS * sizeof *c->longword;
    struct meg_err e;

    if (meg_arena_init(&c->arena, "word cache", words + longwords + LONG_BYTES, &e) < 0)
        meg_die_err(&e);
    c->word = meg_arena_alloc(&c->arena, words, 64);
    c->longword = meg_arena_alloc(&c->arena, longwords, 64);
    c->bytes = meg_arena_alloc(&c->arena, LONG_BYTES, 64);
    c->nbytes = sizeof(struct longhead); /* 0 stands for none */
}

void meg_wordcache_free(struct meg_wordcache *c)
{
    meg_arena_free(&c->arena);
}

static struct meg_longword *long_slot(const struct meg_wordcache *c, const char *s, int64_t n,
                                      uint32_t *hash)
{
    uint64_t h = meg_xxh3_64(s, (size_t)n);

    *hash = (uint32_t)(h >> 32);
    return &c->longword[h % LONG_WORDS];
}

int64_t meg_wordcache_find_long(const struct meg_wordcache *c, const char *s, int64_t n,
                                const int32_t **ids, uint16_t *tag)
{
    uint32_t hash;
    const struct meg_longword *w;
    const struct longhead *head;

    if (n > LONG_WORD_BYTES)
        return 0;
    w = long_slot(c, s, n, &hash);
    head = (const struct longhead *)(c->bytes + w->at);
    if (w->at == 0 || w->hash != hash || head->nbytes != n)
        return 0;
    *ids = (const int32_t *)(head + 1);
    if (tag)
        *tag = head->tag;
    return memcmp(*ids + head->nids, s, (size_t)n) == 0 ? head->nids : 0;
}

static void add_long(struct meg_wordcache *c, const char *s, int64_t n, const int32_t *ids,
                     int64_t nids, uint16_t tag)
{
    size_t size = sizeof(struct longhead) + (size_t)nids * sizeof *ids + (size_t)n;
    struct longhead *head;
    struct meg_longword *w;
    uint32_t hash;

    if (n > LONG_WORD_BYTES)
        return;
    if (c->nbytes + size > LONG_BYTES) { /* full: forget all of them */
        memset(c->longword, 0, LONG_WORDS * sizeof *c->longword);
        c->nbytes = sizeof *head;
    }
    w = long_slot(c, s, n, &hash);
    *w = (struct meg_longword){ hash, c->nbytes };
    head = (struct longhead *)(c->bytes + c->nbytes);
    *head = (struct longhead){ (uint16_t)n, (uint16_t)nids, tag, 0 };
    memcpy(head + 1, ids, (size_t)nids * sizeof *ids);
    memcpy((int32_t *)(head + 1) + nids, s, (size_t)n);
    c->nbytes += (uint32_t)(size + 3) & ~3u;
}

void meg_wordcache_add(struct meg_wordcache *c, const char *s, int64_t n, const int32_t *ids,
                       int64_t nids, uint16_t tag)
{
    char padded[16] = { 0 };
    uint64_t key[2];
    struct meg_word *w;

    if (n > MEG_WORD_BYTES || nids > MEG_WORD_IDS) {
        add_long(c, s, n, ids, nids, tag);
        return;
    }
    memcpy(padded, s, (size_t)n);
    meg_word_key(key, padded, n);
    w = meg_wordcache_pair(c, key);
    w[1] = w[0];
    memcpy(w[0].key, key, sizeof key);
    w[0].n = (uint16_t)nids;
    w[0].tag = tag;
    memcpy(w[0].id, ids, (size_t)nids * sizeof *ids);
}

int64_t meg_wordcache_get(const struct meg_wordcache *c, const char *s, int64_t n,
                          const int32_t **ids)
{
    if (n <= MEG_WORD_BYTES) {
        char padded[16] = { 0 };
        const struct meg_word *w;
        uint64_t key[2];

        memcpy(padded, s, (size_t)n);
        meg_word_key(key, padded, n);
        if ((w = meg_wordcache_find(meg_wordcache_pair(c, key), key))) {
            *ids = w->id;
            return w->n;
        }
    }
    return meg_wordcache_find_long(c, s, n, ids, NULL);
}
