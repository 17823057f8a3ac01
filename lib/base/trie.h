/*
 * trie.h - byte strings to numbers, and all strings that begin at a place in one walk: a double
 * array (Aoe 1989) in which the child of a node for byte c is unit base ^ c, if that unit says c.
 */
#ifndef MEG_BASE_TRIE_H
#define MEG_BASE_TRIE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

struct meg_trie_unit {
    uint32_t link; /* base << 8 | the byte that leads here */
    int32_t value; /* of the string that ends here, or -1 */
};

/* Starts as { 0 }; once built it is only read, by any number of threads. */
struct meg_trie {
    struct meg_trie_unit *unit;
    int64_t n;
};

struct meg_trie_key {
    const char *s;
    int64_t n;     /* >= 1 */
    int32_t value; /* >= 0 */
};

/*
 * meg_trie_build - a trie of the n keys, which come back sorted.
 * MEG_EFORMAT when one stands there twice, which is named, or when their text takes more than 2^24 units.
 */
int meg_trie_build(struct meg_trie *t, struct meg_trie_key *key, int64_t n, struct meg_err *e);
void meg_trie_free(struct meg_trie *t);

/* A walk begins with node = MEG_TRIE_ROOT.  Step by byte c: false where no string goes on so; else
 * *value is that of the string up to here, or -1. */
enum { MEG_TRIE_ROOT = 0 };
static inline bool meg_trie_step(const struct meg_trie *t, uint32_t *node, unsigned char c, int32_t *value)
{
    struct meg_trie_unit u = t->unit[*node ^ c];

    *node = u.link >> 8;
    *value = u.value;
    return (unsigned char)u.link == c;
}

/* The value of a whole string; -1 when it is not there. */
int32_t meg_trie_find(const struct meg_trie *t, const char *s, int64_t n);

#endif
