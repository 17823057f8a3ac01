/* strtab.h - a string table: byte strings are numbered in insertion order and found by hash. */
#pragma once
#include <stdint.h>
#include "base/mem.h"

/*
 * A string table.  Initialize it with { 0 }.  String k begins at bytes.s + offset[k] and ends before
 * bytes.s + offset[k + 1].
 */
struct meg_strtab {
    struct meg_str bytes;
    int64_t *offset; /* [n+1] */
    int64_t n, cap;
    struct meg_strtab_slot *slot;
    uint64_t mask;
};

/* Reserve capacity for n strings. */
void meg_strtab_reserve(struct meg_strtab *t, int64_t n);
/* Insert a string unless it is present, and return its number. */
int64_t meg_strtab_add(struct meg_strtab *t, const char *s, int64_t len);
/*
 * Insert many strings into an empty table, faster than by meg_strtab_add.  meg_strtab_append appends a string without
 * indexing it.  After the last append, meg_strtab_index indexes all strings and returns -1 if they are distinct.
 * Otherwise, meg_strtab_index returns the number of a string that equals an earlier string, and the table is unusable.
 */
void meg_strtab_append(struct meg_strtab *t, const char *s, int64_t len);
int64_t meg_strtab_index(struct meg_strtab *t);
/* Return the number of a string, or -1 if it is not present. */
int64_t meg_strtab_find(const struct meg_strtab *t, const char *s, int64_t len);
/*
 * Find a string in two steps, to hide memory latency.  meg_strtab_prefetch returns the hash of the string and
 * prefetches a slot of the hash table.  meg_strtab_find_hashed takes this hash and returns the same number as
 * meg_strtab_find.
 */
uint64_t meg_strtab_prefetch(const struct meg_strtab *t, const char *s, int64_t len);
int64_t meg_strtab_find_hashed(const struct meg_strtab *t, const char *s, int64_t len, uint64_t hash);
void meg_strtab_free(struct meg_strtab *t);

/* Return a view of string k, without a terminating zero byte.  The view is valid until a string is inserted. */
static inline struct meg_str meg_strtab_get(const struct meg_strtab *t, int64_t k)
{
    size_t n = (size_t)(t->offset[k + 1] - t->offset[k]);
    struct meg_str view = { t->bytes.s + t->offset[k], n, n };

    return view;
}
