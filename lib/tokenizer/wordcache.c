/*
 * A word is in one of MEG_WORD_PLACES neighbouring pairs of entries, the newest in their own and those that
 * are asked for back in it.  The table doubles while words come: a small one stays in the caches, and memory
 * that is never touched costs nothing.
 */
#include "tokenizer/wordcache.h"

#include "base/hash.h"
#include "base/mem.h"

enum {
    FEWEST_PAIRS = 1 << 15, /* 2 MiB of entries */
    MOST_PAIRS = 1 << 19,
    MORE = 3 << 20,         /* ids */
    LONGEST_BYTES = 1024    /* longer words are not worth their room */
};

void meg_wordcache_init(struct meg_wordcache *c)
{
    const size_t words = 2 * MOST_PAIRS * sizeof *c->word;
    const size_t more = (MORE + MEG_WORD_LINE) * sizeof *c->more; /* copied in fours, fetched in lines */
    struct meg_err e;

    if (meg_arena_init(&c->arena, "word cache", words + more, &e) < 0)
        meg_die_err(&e);
    c->word = meg_arena_alloc(&c->arena, words, 64);
    c->more = meg_arena_alloc(&c->arena, more, 64);
    c->mask = FEWEST_PAIRS - 1;
    c->nwords = c->nmore = 0;
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

static struct meg_word *in_pair(struct meg_word *pair, const uint64_t key[2])
{
    return meg_word_is(&pair[0], key) ? &pair[0] : meg_word_is(&pair[1], key) ? &pair[1] : NULL;
}

/* A word that is asked for comes back to its own pair, where it is found sooner. */
static struct meg_word *bring_back(struct meg_word *e, struct meg_word *own)
{
    struct meg_word word = *e;

    *e = own[1];
    own[1] = word;
    return &own[1];
}

const struct meg_word *meg_wordcache_find_on(struct meg_wordcache *c, const struct meg_sought *w)
{
    struct meg_word *e = NULL;
    const int32_t *ids;
    int64_t nids;
    int k = 0;

    for (; k < MEG_WORD_PLACES && !e; k++)
        e = in_pair(meg_word_place(c, w->pair, k), w->key);
    if (!e)
        return NULL;
    if (w->n > MEG_WORD_BYTES) {
        nids = meg_word_ids(c, e, &ids);
        if (memcmp(ids + nids, w->s, (size_t)w->n) != 0)
            return NULL;
    }
    return k > 1 ? bring_back(e, w->pair) : e;
}

static bool is_free(const struct meg_word *e)
{
    return e->key[1] == 0;
}

/* Where a word goes that leaves its own pair: what is free in the others, or any entry of them. */
static struct meg_word *place_beside(struct meg_wordcache *c, const struct meg_word *own)
{
    unsigned any = c->nmoved++;

    for (int k = 1; k < MEG_WORD_PLACES; k++) {
        struct meg_word *pair = meg_word_place(c, own, k);

        if (is_free(&pair[0]) || is_free(&pair[1]))
            return is_free(&pair[0]) ? &pair[0] : &pair[1];
    }
    return meg_word_place(c, own, 1 + (int)(any / 2 % (MEG_WORD_PLACES - 1))) + any % 2;
}

/* Twice as many pairs: a word stays where it is, or goes as far into the new half.  One that is being looked up
 * may then not be found. */
static void grow(struct meg_wordcache *c)
{
    const uint64_t npairs = c->mask + 1;

    for (struct meg_word *e = c->word; e < c->word + 2 * npairs; e++) {
        if (!is_free(e) && (meg_word_hash(e->key) & npairs)) {
            e[2 * npairs] = *e;
            *e = (struct meg_word){ 0 };
        }
    }
    c->mask = 2 * npairs - 1;
}

/* Room for ids and bytes that are not in an entry.  Where there is none all words are forgotten. */
static int32_t take_more(struct meg_wordcache *c, int64_t n)
{
    if (c->nmore + n > MORE) {
        memset(c->word, 0, 2 * (c->mask + 1) * sizeof *c->word);
        c->nwords = c->nmore = 0;
    }
    c->nmore += (int32_t)n;
    return c->nmore - (int32_t)n;
}

void meg_wordcache_add(struct meg_wordcache *c, const char *s, int64_t n, const int32_t *ids,
                       int64_t nids, uint16_t tag)
{
    const int64_t nbytes = n > MEG_WORD_BYTES ? n : 0;
    struct meg_word new = { .n = (uint16_t)nids, .tag = tag };
    struct meg_sought w;

    if (n > LONGEST_BYTES || nids > LONGEST_BYTES)
        return;
    if (nbytes > 0 || nids > MEG_WORD_IDS) {
        new.n += MEG_WORD_ELSEWHERE;
        new.at = take_more(c, nids + (nbytes + 3) / 4);
        memcpy(c->more + new.at, ids, (size_t)nids * sizeof *ids);
        memcpy(c->more + new.at + nids, s, (size_t)nbytes);
    } else {
        memcpy(new.id, ids, (size_t)nids * sizeof *ids);
    }
    if (c->nwords++ > c->mask / 2 && c->mask < MOST_PAIRS - 1)
        grow(c);
    meg_wordcache_seek(c, &w, s, n, s + n);
    memcpy(new.key, w.key, sizeof new.key);
    if (!is_free(&w.pair[0])) {
        if (!is_free(&w.pair[1]))
            *place_beside(c, w.pair) = w.pair[1];
        w.pair[1] = w.pair[0];
    }
    w.pair[0] = new;
}

int64_t meg_wordcache_get(struct meg_wordcache *c, const char *s, int64_t n, const int32_t **ids)
{
    const struct meg_word *e;
    struct meg_sought w;

    meg_wordcache_seek(c, &w, s, n, s + n);
    meg_wordcache_come(c, &w, 1);
    e = meg_wordcache_find(c, &w);
    return e ? meg_word_ids(c, e, ids) : 0;
}
