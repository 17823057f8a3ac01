#include "base/strtab.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"

/* Half of the hash tells most strings apart without a look at their bytes. */
struct meg_strtab_slot {
    uint32_t hash;
    uint32_t number; /* plus 1; 0 where the slot is free */
};

static struct meg_strtab_slot *slot_of(const struct meg_strtab *t, const char *s, int64_t len, uint64_t hash)
{
    for (uint64_t i = hash & t->mask;; i = (i + 1) & t->mask) {
        struct meg_strtab_slot *slot = &t->slot[i];
        int64_t k = (int64_t)slot->number - 1;

        if (k < 0 || (slot->hash == (uint32_t)(hash >> 32) && t->at[k + 1] - t->at[k] == len &&
                      memcmp(t->bytes.s + t->at[k], s, (size_t)len) == 0))
            return slot;
    }
}

/* Room for n strings, of which none is found yet. */
static void make_room(struct meg_strtab *t, int64_t n)
{
    t->cap = t->cap ? t->cap : 1024;
    while (t->cap < n)
        t->cap *= 2;
    t->at = meg_realloc_array(t->at, (size_t)t->cap + 1, sizeof *t->at);
    t->at[0] = 0;
    free(t->slot);
    t->mask = 2 * (uint64_t)t->cap - 1;
    t->slot = meg_new((t->mask + 1) * sizeof *t->slot);
}

int64_t meg_strtab_index(struct meg_strtab *t)
{
    enum { AHEAD = 16 };
    uint64_t hash[AHEAD];

    for (int64_t k = 0; k < t->n + AHEAD; k++) {
        uint64_t *h = &hash[k % AHEAD];

        if (k >= AHEAD) {
            struct meg_str s = meg_strtab_get(t, k - AHEAD);
            struct meg_strtab_slot *slot = slot_of(t, s.s, (int64_t)s.n, *h);

            if (slot->number > 0)
                return k - AHEAD;
            *slot = (struct meg_strtab_slot){ (uint32_t)(*h >> 32), (uint32_t)(k - AHEAD + 1) };
        }
        if (k < t->n)
            *h = meg_strtab_prefetch(t, t->bytes.s + t->at[k], t->at[k + 1] - t->at[k]);
    }
    return -1;
}

void meg_strtab_reserve(struct meg_strtab *t, int64_t n)
{
    if (n <= t->cap)
        return;
    make_room(t, n);
    meg_strtab_index(t);
}

static void append(struct meg_strtab *t, const char *s, int64_t len)
{
    MEG_ASSERT(t->n < UINT32_MAX);
    meg_str_add(&t->bytes, s, (size_t)len);
    t->at[++t->n] = (int64_t)t->bytes.n;
}

void meg_strtab_append(struct meg_strtab *t, const char *s, int64_t len)
{
    if (t->n == t->cap)
        make_room(t, t->n + 1);
    append(t, s, len);
}

int64_t meg_strtab_add(struct meg_strtab *t, const char *s, int64_t len)
{
    uint64_t hash = meg_xxh3_64(s, (size_t)len);
    struct meg_strtab_slot *slot;

    meg_strtab_reserve(t, t->n + 1);
    slot = slot_of(t, s, len, hash);
    if (slot->number == 0) {
        append(t, s, len);
        *slot = (struct meg_strtab_slot){ (uint32_t)(hash >> 32), (uint32_t)t->n };
    }
    return (int64_t)slot->number - 1;
}

uint64_t meg_strtab_prefetch(const struct meg_strtab *t, const char *s, int64_t len)
{
    uint64_t hash = meg_xxh3_64(s, (size_t)len);

    __builtin_prefetch(t->slot + (hash & t->mask));
    return hash;
}

int64_t meg_strtab_find_hashed(const struct meg_strtab *t, const char *s, int64_t len, uint64_t hash)
{
    return t->slot ? (int64_t)slot_of(t, s, len, hash)->number - 1 : -1;
}

int64_t meg_strtab_find(const struct meg_strtab *t, const char *s, int64_t len)
{
    return meg_strtab_find_hashed(t, s, len, meg_xxh3_64(s, (size_t)len));
}

void meg_strtab_free(struct meg_strtab *t)
{
    meg_str_free(&t->bytes);
    free(t->at);
    free(t->slot);
}
