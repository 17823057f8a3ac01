/* strtab.c - a string table: byte strings are numbered in insertion order and found by hash. */
#include "base/strtab.h"
#include <stdlib.h>
#include <string.h>
#include "base/hash.h"

/* A slot of the open-addressing hash table. */
struct meg_strtab_slot {
    uint32_t hash;        /* upper half of the hash; strings are compared only if these halves are equal */
    uint32_t index_plus1; /* index of the string + 1; 0 if the slot is free */
};

static struct meg_strtab_slot *find_slot(const struct meg_strtab *t, const char *s, int64_t len, uint64_t hash)
{
    for (uint64_t i = hash & t->mask;; i = (i + 1) & t->mask) {
        struct meg_strtab_slot *slot = &t->slot[i];
        int64_t k = (int64_t)slot->index_plus1 - 1;

        if (k < 0 || (slot->hash == (uint32_t)(hash >> 32) && t->offset[k + 1] - t->offset[k] == len &&
                      memcmp(t->bytes.s + t->offset[k], s, (size_t)len) == 0))
            return slot;
    }
}

/* Increase the capacity to at least n strings, and empty the hash table. */
static void grow(struct meg_strtab *t, int64_t n)
{
    t->cap = t->cap ? t->cap : 1024;
    while (t->cap < n)
        t->cap *= 2;
    t->offset = meg_realloc_array(t->offset, (size_t)t->cap + 1, sizeof *t->offset);
    t->offset[0] = 0;
    free(t->slot);
    t->mask = 2 * (uint64_t)t->cap - 1;
    t->slot = meg_new((t->mask + 1) * sizeof *t->slot);
}

int64_t meg_strtab_index(struct meg_strtab *t)
{
    enum { AHEAD = 16 }; /* number of strings between prefetch and insertion */
    uint64_t hash[AHEAD];

    for (int64_t k = 0; k < t->n + AHEAD; k++) {
        uint64_t *h = &hash[k % AHEAD];

        if (k >= AHEAD) {
            struct meg_str s = meg_strtab_get(t, k - AHEAD);
            struct meg_strtab_slot *slot = find_slot(t, s.s, (int64_t)s.n, *h);

            if (slot->index_plus1 > 0)
                return k - AHEAD;
            *slot = (struct meg_strtab_slot){ (uint32_t)(*h >> 32), (uint32_t)(k - AHEAD + 1) };
        }
        if (k < t->n)
            *h = meg_strtab_prefetch(t, t->bytes.s + t->offset[k], t->offset[k + 1] - t->offset[k]);
    }
    return -1;
}

void meg_strtab_reserve(struct meg_strtab *t, int64_t n)
{
    if (n <= t->cap)
        return;
    grow(t, n);
    meg_strtab_index(t);
}

static void append(struct meg_strtab *t, const char *s, int64_t len)
{
    MEG_ASSERT_LT(t->n, UINT32_MAX);
    meg_str_add(&t->bytes, s, (size_t)len);
    t->offset[++t->n] = (int64_t)t->bytes.n;
}

void meg_strtab_append(struct meg_strtab *t, const char *s, int64_t len)
{
    if (t->n == t->cap)
        grow(t, t->n + 1);
    append(t, s, len);
}

int64_t meg_strtab_add(struct meg_strtab *t, const char *s, int64_t len)
{
    uint64_t hash = meg_xxh3_64(s, (size_t)len);
    struct meg_strtab_slot *slot;

    meg_strtab_reserve(t, t->n + 1);
    slot = find_slot(t, s, len, hash);
    if (slot->index_plus1 == 0) {
        append(t, s, len);
        *slot = (struct meg_strtab_slot){ (uint32_t)(hash >> 32), (uint32_t)t->n };
    }
    return (int64_t)slot->index_plus1 - 1;
}

uint64_t meg_strtab_prefetch(const struct meg_strtab *t, const char *s, int64_t len)
{
    uint64_t hash = meg_xxh3_64(s, (size_t)len);

    __builtin_prefetch(t->slot + (hash & t->mask));
    return hash;
}

int64_t meg_strtab_find_hashed(const struct meg_strtab *t, const char *s, int64_t len, uint64_t hash)
{
    return t->slot ? (int64_t)find_slot(t, s, len, hash)->index_plus1 - 1 : -1;
}

int64_t meg_strtab_find(const struct meg_strtab *t, const char *s, int64_t len)
{
    return meg_strtab_find_hashed(t, s, len, meg_xxh3_64(s, (size_t)len));
}

void meg_strtab_free(struct meg_strtab *t)
{
    meg_str_free(&t->bytes);
    free(t->offset);
    free(t->slot);
}
