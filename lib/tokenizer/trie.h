/*
 * trie.h - a double-array trie (Aoe 1989).  A trie maps byte strings to numbers, and finds all keys that are prefixes
 * of a text.  The trie is an array of units.  Each node except the root has a unit with the node's label and base.  The
 * child of a node for byte c is unit base ^ c if the label of that unit is c.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "base/err.h"

struct meg_trie_unit {
    uint32_t link; /* base << 8 | label */
    int32_t value; /* value of the key that ends here, or -1 */
};

/* A trie.  Initialize it with { 0 }.  After meg_trie_build it is immutable, so any number of threads can use it. */
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
 * meg_trie_build - sort the n keys and build a trie of the keys
 * Returns MEG_EFORMAT if two keys are equal (the message contains the key) or the trie exceeds 2^24 units.
 */
int meg_trie_build(struct meg_trie *t, struct meg_trie_key *key, int64_t n, struct meg_err *e);
void meg_trie_free(struct meg_trie *t);

/*
 * meg_trie_step - set *node, initially MEG_TRIE_ROOT, to its child for byte c
 * Returns false if there is no child, and leaves undefined values in *node and *value.  Otherwise, sets *value to the
 * value of the key that ends at the child, or to -1 if no key ends there.
 * For c = 0, the function may return true although there is no child.  *value is -1 in that case, and the next step
 * returns false.
 */
enum { MEG_TRIE_ROOT = 0 };
static inline bool meg_trie_step(const struct meg_trie *t, uint32_t *node, unsigned char c, int32_t *value)
{
    struct meg_trie_unit u = t->unit[*node ^ c];

    *node = u.link >> 8;
    *value = u.value;
    return (unsigned char)u.link == c;
}

/*
 * Return the length of the longest key that s [n] begins with, and set *value to its value.  Return 0 and set *value to
 * -1 if there is none.
 */
static inline int64_t meg_trie_longest(const struct meg_trie *t, const char *s, int64_t n, int32_t *value)
{
    uint32_t node = MEG_TRIE_ROOT;
    int64_t longest = 0;
    int32_t v;

    *value = -1;
    for (int64_t i = 0; i < n && meg_trie_step(t, &node, (unsigned char)s[i], &v); i++) {
        if (v >= 0) {
            *value = v;
            longest = i + 1;
        }
    }
    return longest;
}

/* Return the value of the key s [n], or -1 if it is not in the trie. */
int32_t meg_trie_find(const struct meg_trie *t, const char *s, int64_t n);
