/*
 * trie.c - build a double-array trie.  Each inner node has a base.  The child with label c is unit base ^ c.  A base is
 * chosen for which the units of all children are free.  No two inner nodes have the same base, so the index and the
 * label of a unit identify its parent.  All leaves have base LEAF, which no inner node has.  Units that remain free are
 * initialized as leaves without a value.  A lookup that reaches a free unit finds neither a value nor a child.
 */
#include "tokenizer/trie.h"
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"

enum {
    BLOCK = 256,        /* units are allocated in blocks; base ^ c is in the same block as base */
    MAX_PROBES = 32,    /* number of free units that are tried before a new block is allocated */
    LEAF = BLOCK,       /* base of all leaves, in the second block; the first block has the root's children */
    MAX_FAILURES = 512, /* number of failed attempts after which a unit is removed from the free list */
    MAX_UNITS = 1 << 24
};

/* The state of a unit during the build. */
struct unit_state {
    int32_t prev, next; /* indices of the neighbors in the list of free units; -1 at its ends */
    uint16_t failures;
    bool is_used; /* the unit is not in the list of free units */
    bool is_base; /* the index is the base of a node */
};

struct build {
    struct meg_trie_unit *unit;
    struct unit_state *state;
    int64_t n, cap;
    int32_t first, last; /* first and last free unit, or -1 */
};

/*
 * A node whose children have no units yet.  The children's labels are the bytes at offset `depth` of keys [lo, hi).
 */
struct node {
    int64_t lo, hi, depth;
    uint32_t unit; /* index of the node's unit; NO_UNIT for the root */
};
#define NO_UNIT UINT32_MAX

static void remove_free(struct build *b, int32_t i)
{
    struct unit_state *s = &b->state[i];

    *(s->prev < 0 ? &b->first : &b->state[s->prev].next) = s->next;
    *(s->next < 0 ? &b->last : &b->state[s->next].prev) = s->prev;
    s->is_used = true;
}

static void add_block(struct build *b)
{
    if (b->n + BLOCK > b->cap) {
        b->cap = 2 * b->cap + 64 * BLOCK;
        b->unit = meg_realloc_array(b->unit, (size_t)b->cap, sizeof *b->unit);
        b->state = meg_realloc_array(b->state, (size_t)b->cap, sizeof *b->state);
    }
    for (int64_t i = b->n; i < b->n + BLOCK; i++) {
        b->unit[i] = (struct meg_trie_unit){ LEAF << 8, -1 };
        b->state[i] = (struct unit_state){ .prev = b->last, .next = -1 };
        *(b->last < 0 ? &b->first : &b->state[b->last].next) = (int32_t)i;
        b->last = (int32_t)i;
    }
    b->n += BLOCK;
}

static bool fits(const struct build *b, uint32_t base, const unsigned char *label, int n)
{
    if (b->state[base].is_base)
        return false;
    for (int k = 1; k < n; k++) {
        if (b->state[base ^ label[k]].is_used)
            return false;
    }
    return true;
}

static uint32_t find_base(struct build *b, const unsigned char *label, int n)
{
    int probes = 0;

    for (int32_t i = b->first, next; i >= 0 && probes < MAX_PROBES; i = next, probes++) {
        uint32_t base = (uint32_t)i ^ label[0];

        next = b->state[i].next;
        if (fits(b, base, label, n))
            return base;
        if (++b->state[i].failures == MAX_FAILURES)
            remove_free(b, i);
    }
    add_block(b);
    return (uint32_t)(b->n - BLOCK);
}

/*
 * Group the keys [lo, hi) of a node by label, the byte at offset `depth`.  Returns n, the number of groups.  Sets
 * `label` [n] to the labels, and `end` [n] to the index of the key after each group.
 */
static int group_by_label(const struct meg_trie_key *key, const struct node *x, unsigned char *label, int64_t *end)
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

static void place_node(struct build *b, const struct meg_trie_key *key, struct node x, struct node *stack,
                       int64_t *nstack)
{
    unsigned char label[256];
    int64_t end[256];
    int n = group_by_label(key, &x, label, end);
    uint32_t base = x.unit == NO_UNIT ? MEG_TRIE_ROOT : find_base(b, label, n);

    b->state[base].is_base = true;
    if (x.unit != NO_UNIT)
        b->unit[x.unit].link = base << 8 | (b->unit[x.unit].link & 0xFF);
    for (int k = 0; k < n; k++) {
        struct node child = { k ? end[k - 1] : x.lo, end[k], x.depth + 1, base ^ label[k] };
        struct meg_trie_unit *u = &b->unit[child.unit];

        remove_free(b, (int32_t)child.unit);
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
    int64_t nstack = 0, duplicate;

    qsort(key, (size_t)n, sizeof *key, compare);
    if ((duplicate = find_duplicate(key, n)) >= 0)
        return meg_fail(e, MEG_EFORMAT, "duplicate string '%.*s'", (int)key[duplicate].n, key[duplicate].s);
    stack = meg_realloc_array(NULL, (size_t)n + 256, sizeof *stack);
    add_block(&b);
    add_block(&b);
    remove_free(&b, LEAF);
    b.state[LEAF].is_base = true;
    b.unit[LEAF].link |= 0xFF;
    if (n > 0)
        stack[nstack++] = (struct node){ 0, n, 0, NO_UNIT };
    while (nstack > 0 && b.n <= MAX_UNITS) {
        struct node x = stack[--nstack];

        place_node(&b, key, x, stack, &nstack);
    }
    free(stack);
    free(b.state);
    if (b.n > MAX_UNITS) {
        free(b.unit);
        return meg_fail(e, MEG_EFORMAT,
                        "the vocabulary is too large: its tokens are too many or too long for a trie of %d units",
                        MAX_UNITS);
    }
    t->unit = b.unit;
    t->n = b.n;
    return 0;
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
