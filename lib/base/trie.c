/*
 * Nodes are placed one after the other, each with all its children: a base is sought for which the
 * units of all children are free.  No two nodes share a base, so that the byte in a unit suffices to
 * tell whose child it is.  A leaf has base LEAF, where nobody's children are.  A unit that stays free
 * is a leaf without a value: whoever steps into it by mistake finds nothing and goes no further.
 */
#include "base/trie.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

enum {
    BLOCK = 256,        /* units are added by so many: base ^ c never leaves the block of base */
    TRIES = 32,         /* free units looked at for a place, before a new block is begun */
    LEAF = BLOCK,       /* base of leaves, in the second block: the first has the root's children */
    MAX_FAILURES = 512, /* after so many failures a free unit is left alone */
    MAX_UNITS = 1 << 24
};

/* What is known of a unit while the trie is built. */
struct slot {
    int32_t prev, next; /* among free units, in order; -1 at the ends */
    uint16_t failures;
    bool is_used, is_base; /* as unit; as base */
};

struct build {
    struct meg_trie_unit *unit;
    struct slot *slot;
    int64_t n, cap;
    int32_t first, last; /* free units; -1: none */
};

/* A node whose children are still to be placed: those of keys [lo, hi) at depth. */
struct node {
    int64_t lo, hi, depth;
    uint32_t at; /* its unit; NO_UNIT for the root */
};
#define NO_UNIT UINT32_MAX

static void take(struct build *b, int32_t i)
{
    struct slot *s = &b->slot[i];

    *(s->prev < 0 ? &b->first : &b->slot[s->prev].next) = s->next;
    *(s->next < 0 ? &b->last : &b->slot[s->next].prev) = s->prev;
    s->is_used = true;
}

static void add_block(struct build *b)
{
    if (b->n + BLOCK > b->cap) {
        b->cap = 2 * b->cap + 64 * BLOCK;
        b->unit = meg_realloc_array(b->unit, (size_t)b->cap, sizeof *b->unit);
        b->slot = meg_realloc_array(b->slot, (size_t)b->cap, sizeof *b->slot);
    }
    for (int64_t i = b->n; i < b->n + BLOCK; i++) {
        b->unit[i] = (struct meg_trie_unit){ LEAF << 8, -1 };
        b->slot[i] = (struct slot){ .prev = b->last, .next = -1 };
        *(b->last < 0 ? &b->first : &b->slot[b->last].next) = (int32_t)i;
        b->last = (int32_t)i;
    }
    b->n += BLOCK;
}

static bool fits(const struct build *b, uint32_t base, const unsigned char *label, int n)
{
    if (b->slot[base].is_base)
        return false;
    for (int k = 1; k < n; k++) {
        if (b->slot[base ^ label[k]].is_used)
            return false;
    }
    return true;
}

static uint32_t find_base(struct build *b, const unsigned char *label, int n)
{
    int tries = 0;

    for (int32_t i = b->first, next; i >= 0 && tries < TRIES; i = next, tries++) {
        uint32_t base = (uint32_t)i ^ label[0];

        next = b->slot[i].next;
        if (fits(b, base, label, n))
            return base;
        if (++b->slot[i].failures == MAX_FAILURES)
            take(b, i);
    }
    add_block(b);
    return (uint32_t)(b->n - BLOCK);
}

/* Ends of the groups of keys [lo, hi) that have the same byte at depth, and those bytes. */
static int group(const struct meg_trie_key *key, const struct node *x, unsigned char *label, int64_t *end)
{
    int n = 0;

    for (int64_t i = x->lo; i < x->hi; i++) {
        unsigned char c = (unsigned char)key[i].s[x->depth];

        if (n == 0 || label[n - 1] != c)
            label[n++] = c;
        end[n - 1] = i + 1;
    }
    return n;
}

static void place(struct build *b, const struct meg_trie_key *key, struct node x, struct node *stack, int64_t *nstack)
{
    unsigned char label[256];
    int64_t end[256];
    int n = group(key, &x, label, end);
    uint32_t base = x.at == NO_UNIT ? MEG_TRIE_ROOT : find_base(b, label, n);

    b->slot[base].is_base = true;
    if (x.at != NO_UNIT)
        b->unit[x.at].link = base << 8 | (b->unit[x.at].link & 0xFF);
    for (int k = 0; k < n; k++) {
        struct node child = { k ? end[k - 1] : x.lo, end[k], x.depth + 1, base ^ label[k] };
        struct meg_trie_unit *u = &b->unit[child.at];

        take(b, (int32_t)child.at);
        *u = (struct meg_trie_unit){ (uint32_t)LEAF << 8 | label[k], -1 };
        if (key[child.lo].n == child.depth)
            u->value = key[child.lo++].value;
        if (child.lo < child.hi)
            stack[(*nstack)++] = child;
    }
}

static int compare(const void *x, const void *y)
{
    const struct meg_trie_key *a = x, *b = y;
    int c = memcmp(a->s, b->s, (size_t)(a->n < b->n ? a->n : b->n));

    if (c == 0)
        c = (a->n > b->n) - (a->n < b->n);
    return c ? c : (a->value > b->value) - (a->value < b->value);
}

static int64_t find_duplicate(const struct meg_trie_key *key, int64_t n)
{
    for (int64_t i = 1; i < n; i++) {
        if (key[i].n == key[i - 1].n && memcmp(key[i].s, key[i - 1].s, (size_t)key[i].n) == 0)
            return i;
    }
    return -1;
}

int meg_trie_build(struct meg_trie *t, struct meg_trie_key *key, int64_t n, struct meg_err *e)
{
    struct build b = { .first = -1, .last = -1 };
    struct node *stack;
    int64_t nstack = 0, same;

    qsort(key, (size_t)n, sizeof *key, compare);
    if ((same = find_duplicate(key, n)) >= 0)
        return meg_fail(e, MEG_EFORMAT, "'%.*s' stands there twice", (int)key[same].n, key[same].s);
    stack = meg_realloc_array(NULL, (size_t)n + 256, sizeof *stack);
    add_block(&b);
    add_block(&b);
    take(&b, LEAF);
    b.slot[LEAF].is_base = true;
    b.unit[LEAF].link |= 0xFF;
    if (n > 0)
        stack[nstack++] = (struct node){ 0, n, 0, NO_UNIT };
    while (nstack > 0 && b.n <= MAX_UNITS) {
        struct node x = stack[--nstack];

        place(&b, key, x, stack, &nstack);
    }
    free(stack);
    free(b.slot);
    if (b.n > MAX_UNITS) {
        free(b.unit);
        return meg_fail(e, MEG_EFORMAT, "more text than a trie of %d units holds", MAX_UNITS);
    }
    t->unit = b.unit;
    t->n = b.n;
    return MEG_OK;
}

void meg_trie_free(struct meg_trie *t)
{
    free(t->unit);
}

int32_t meg_trie_find(const struct meg_trie *t, const char *s, int64_t n)
{
    uint32_t node = MEG_TRIE_ROOT;
    int32_t value = -1;

    for (int64_t i = 0; i < n; i++) {
        if (!meg_trie_step(t, &node, (unsigned char)s[i], &value))
            return -1;
    }
    return value;
}
