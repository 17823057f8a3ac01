#include "text/strtab.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"

/* Half of the hash tells most strings apart without a look at their bytes. */
struct meg_strtab_slot {
    uint32_t hash;
    uint32_t number; /* plus 1; 0 where the slot is free */
};

static struct meg_strtab_slot *slot_of(const struct meg_strtab *t, const char *s, int64_t len,
                                       uint64_t hash)
{
    for (uint64_t i = hash & t->mask;; i = (i + 1) & t->mask) {
        struct meg_strtab_slot *slot = &t->slot[i];
        int64_t k = (int64_t)slot->number - 1;

        if (k < 0 ||
            (slot->hash == (uint32_t)(hash >> 32) && t->at[k + 1] - t->at[k] == len &&
             memcmp(t->bytes.s + t->at[k], s, (size_t)len) == 0))
            return slot;
    }
}

static void grow(struct meg_strtab *t, int64_t n)
{
    t->cap = t->cap ? t->cap : 1024;
    while (t->cap < n)
        t->cap *= 2;
    t->at = meg_realloc_array(t->at, (size_t)t->cap + 1, sizeof *t->at);
    t->at[0] = 0;
    free(t->slot);
    t->mask = 2 * (uint64_t)t->cap - 1;
    t->slot = meg_new((t->mask + 1) * sizeof *t->slot);
    for (int64_t k = 0; k < t->n; k++) {
        const char *s = t->bytes.s + t->at[k];
        int64_t len = t->at[k + 1] - t->at[k];
        uint64_t hash = meg_xxh3_64(s, (size_t)len);

        *slot_of(t, s, len, hash) =
            (struct meg_strtab_slot){ (uint32_t)(hash >> 32), (uint32_t)k + 1 };
    }
}

void meg_strtab_reserve(struct meg_strtab *t, int64_t n)
{
    if (n > t->cap)
        grow(t, n);
}

int64_t meg_strtab_add(struct meg_strtab *t, const char *s, int64_t len)
{
    uint64_t hash = meg_xxh3_64(s, (size_t)len);
    struct meg_strtab_slot *slot;

    if (t->n == t->cap)
        grow(t, t->n + 1);
    slot = slot_of(t, s, len, hash);
    if (slot->number == 0) {
        MEG_ASSERT(t->n < UINT32_MAX);
        meg_str_add(&t->bytes, s, (size_t)len);
        *slot = (struct meg_strtab_slot){ (uint32_t)(hash >> 32), (uint32_t)++t->n };
        t->at[t->n] = (int64_t)t->bytes.n;
    }
    return (int64_t)slot->number - 1;
}

uint64_t meg_strtab_seek(const struct meg_strtab *t, const char *s, int64_t len)
{
    uint64_t hash = meg_xxh3_64(s, (size_t)len);

    __builtin_prefetch(t->slot + (hash & t->mask));
    return hash;
}

int64_t meg_strtab_find_sought(const struct meg_strtab *t, const char *s, int64_t len,
                               uint64_t hash)
{
    return t->slot ? (int64_t)slot_of(t, s, len, hash)->number - 1 : -1;
}

int64_t meg_strtab_find(const struct meg_strtab *t, const char *s, int64_t len)
{
    return meg_strtab_find_sought(t, s, len, meg_xxh3_64(s, (size_t)len));
}

void meg_strtab_free(struct meg_strtab *t)
{
    meg_str_free(&t->bytes);
    free(t->at);
    free(t->slot);
}
