/* strtab.h - byte strings numbered in the order they came, found again by hash. */
#ifndef MEG_BASE_STRTAB_H
#define MEG_BASE_STRTAB_H

#include <stdint.h>

#include "base/mem.h"

/* Starts as { 0 }.  String k is bytes.s + at[k] .. at[k + 1]. */
struct meg_strtab {
    struct meg_str bytes;
    int64_t *at; /* [n+1] */
    int64_t n, cap;
    struct meg_strtab_slot *slot;
    uint64_t mask;
};

/* Make room for n strings at once. */
void meg_strtab_reserve(struct meg_strtab *t, int64_t n);
/* The number of a string; n - 1 after the call when it was not there before. */
int64_t meg_strtab_add(struct meg_strtab *t, const char *s, int64_t len);
/* Many at once, faster: each is given the next number, and none is found before meg_strtab_index, which
 * returns -1, or the number of one that was there before; then the table is good for nothing. */
void meg_strtab_append(struct meg_strtab *t, const char *s, int64_t len);
int64_t meg_strtab_index(struct meg_strtab *t);
/* As meg_strtab_add, but -1 and nothing added when it is not there. */
int64_t meg_strtab_find(const struct meg_strtab *t, const char *s, int64_t len);
/* The same in two steps, between which the string's place is on the way to the processor: the first
 * returns the hash that the second wants. */
uint64_t meg_strtab_prefetch(const struct meg_strtab *t, const char *s, int64_t len);
int64_t meg_strtab_find_hashed(const struct meg_strtab *t, const char *s, int64_t len, uint64_t hash);
void meg_strtab_free(struct meg_strtab *t);

static inline struct meg_str meg_strtab_get(const struct meg_strtab *t, int64_t k)
{
    size_t n = (size_t)(t->at[k + 1] - t->at[k]);
    struct meg_str view = { t->bytes.s + t->at[k], n, n };

    return view;
}

#endif
