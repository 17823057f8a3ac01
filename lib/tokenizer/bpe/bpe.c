/*
 * bpe.c - BPE merges: a hash table of ranked pairs, and the merging of symbols.
 *
 * Most lookups are of pairs without a merge.  The hash table can be larger than the CPU caches, so a small Bloom filter
 * is probed first.  Pairs of two symbols below DENSE_IDS are in a dense table instead.  In byte-level vocabularies,
 * these symbols often include the single bytes.
 */
#include "tokenizer/bpe/bpe.h"
#include <stdbool.h>
#include <stdlib.h>

#define NO_PAIR UINT64_MAX
#define NO_RANK INT32_MAX

struct meg_bpe_pair {
    uint64_t key; /* left symbol << 32 | right symbol, or NO_PAIR */
    struct meg_bpe_ranked to;
};
enum { DENSE_IDS = 256 };

static const struct meg_bpe_ranked unranked = { NO_RANK, -1 };

static uint64_t hash_of(uint64_t key)
{
    return key * 0x9E3779B97F4A7C15u;
}

/* Return the bit index of a hash in the Bloom filter, which has eight bits per slot. */
static uint64_t bloom_bit(const struct meg_bpe *b, uint64_t hash)
{
    return (hash >> 20 ^ hash >> 41) & (8 * b->mask + 7);
}

/* Return the index of the first slot to probe. */
static uint64_t bucket_of(const struct meg_bpe *b, uint64_t hash)
{
    return (hash ^ hash >> 32) & b->mask;
}

static struct meg_bpe_pair *slot_of(const struct meg_bpe *b, uint64_t key)
{
    uint64_t i = bucket_of(b, hash_of(key));

    for (; b->slot[i].key != key && b->slot[i].key != NO_PAIR;)
        i = (i + 1) & b->mask;
    return &b->slot[i];
}

static uint64_t key_of(int32_t left, int32_t right)
{
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

/* Return the entry of a pair in the dense table, or NULL if a symbol is not in [0, DENSE_IDS). */
static inline struct meg_bpe_ranked *dense_pair(const struct meg_bpe *b, int32_t left, int32_t right)
{
    return (uint32_t)(left | right) < DENSE_IDS ? &b->dense[left * DENSE_IDS + right] : NULL;
}

static struct meg_bpe_ranked find(const struct meg_bpe *b, int32_t left, int32_t right)
{
    const struct meg_bpe_ranked *dense = dense_pair(b, left, right);
    uint64_t key = key_of(left, right), bit = bloom_bit(b, hash_of(key));
    const struct meg_bpe_pair *p;

    if (dense)
        return *dense;
    if (left < 0 || right < 0 || !(b->bloom[bit / 64] >> bit % 64 & 1))
        return unranked;
    p = slot_of(b, key);
    return p->key == NO_PAIR ? unranked : p->to;
}

void meg_bpe_init(struct meg_bpe *b, int64_t n)
{
    const uint64_t ndense = DENSE_IDS * DENSE_IDS * sizeof *b->dense;
    uint64_t size = 64, nslots, nbits;
    struct meg_err e;

    while (2 * size < 3 * (uint64_t)n)
        size *= 2;
    nslots = size * sizeof *b->slot;
    nbits = size / 64 * 8 * sizeof *b->bloom;
    if (meg_arena_init(&b->arena, "table of merges", nslots + nbits + ndense, &e) < 0)
        meg_die_err(&e);
    b->slot = meg_arena_alloc(&b->arena, nslots, 64);
    b->bloom = meg_arena_alloc(&b->arena, nbits, 64);
    b->dense = meg_arena_alloc(&b->arena, ndense, 64);
    b->mask = size - 1;
    b->n = 0;
    for (uint64_t i = 0; i < size; i++)
        b->slot[i].key = NO_PAIR;
    for (int i = 0; i < DENSE_IDS * DENSE_IDS; i++)
        b->dense[i] = unranked;
}

void meg_bpe_free(struct meg_bpe *b)
{
    meg_arena_free(&b->arena);
}

void meg_bpe_add(struct meg_bpe *b, int32_t left, int32_t right, int32_t rank, int32_t id)
{
    const struct meg_bpe_ranked to = { rank, id };
    struct meg_bpe_ranked *dense = dense_pair(b, left, right);
    uint64_t key = key_of(left, right), bit = bloom_bit(b, hash_of(key));
    struct meg_bpe_pair *p;

    if (dense) {
        *dense = to;
        return;
    }
    p = slot_of(b, key);
    b->n += p->key == NO_PAIR;
    MEG_ASSERT((uint64_t)b->n <= b->mask);
    *p = (struct meg_bpe_pair){ key, to };
    b->bloom[bit / 64] |= (uint64_t)1 << bit % 64;
}

void meg_bpe_add_all(struct meg_bpe *b, const struct meg_bpe_merge_rule *merge, int64_t n)
{
    enum { AHEAD = 16 };

    for (int64_t i = 0; i < n; i++) {
        if (i + AHEAD < n) {
            uint64_t hash = hash_of(key_of(merge[i + AHEAD].left, merge[i + AHEAD].right));

            __builtin_prefetch(&b->slot[bucket_of(b, hash)]);
            __builtin_prefetch(&b->bloom[bloom_bit(b, hash) / 64]);
        }
        meg_bpe_add(b, merge[i].left, merge[i].right, merge[i].rank, merge[i].id);
    }
}

/* The table of pairs, and the variant of BPE with which symbols are merged. */
struct merge_mode {
    const struct meg_bpe *b;
    bool is_leftmost;                    /* merge as meg_bpe_merge_leftmost does */
    struct meg_bpe_rev_merge *rev_merge; /* output of meg_bpe_merge_leftmost, or NULL */
};

static struct meg_bpe_ranked find_pair_traced(const struct merge_mode *mode, int32_t left, int32_t right)
{
    struct meg_bpe_ranked p = find(mode->b, left, right);

    if (mode->rev_merge && p.id >= 0)
        mode->rev_merge[p.id] = (struct meg_bpe_rev_merge){ left, right };
    return p;
}

/* Return rank and id of the pair at sym as one integer, with the rank in the upper half. */
static uint64_t rank_of(const struct merge_mode *mode, const int32_t *sym)
{
    struct meg_bpe_ranked p = find_pair_traced(mode, sym[0], sym[1]);

    return (uint64_t)p.rank << 32 | (uint32_t)p.id;
}

/*
 * Merge n <= MEG_BPE_SHORT symbols.  Before each merge, a linear scan finds the pair of lowest rank.  This takes
 * quadratic time, but is the fastest method for few symbols.
 */
static int64_t merge_short(const struct merge_mode *mode, int32_t *sym, int64_t n)
{
    uint64_t pair[MEG_BPE_SHORT]; /* rank and id of the pair of symbols i and i + 1 */

    for (int64_t i = 0; i + 1 < n; i++)
        pair[i] = rank_of(mode, sym + i);
    while (n > 1) {
        uint64_t best = pair[0];
        int64_t first = 0;

        for (int64_t i = 1; i + 1 < n; i++) {
            if (pair[i] >> 32 < best >> 32) { /* on ties, choose the leftmost pair */
                best = pair[i];
                first = i;
            }
        }
        if (best >> 32 == NO_RANK)
            break;
        for (int64_t i = first; i + 1 < n; i++) {
            if (pair[i] != best)
                continue;
            sym[i] = (int32_t)best;
            n--;
            for (int64_t k = i + 1; k < n; k++) {
                sym[k] = sym[k + 1];
                pair[k - 1] = pair[k];
            }
            if (i > 0)
                pair[i - 1] = rank_of(mode, sym + i - 1);
            if (i + 1 < n)
                pair[i] = rank_of(mode, sym + i);
            if (mode->is_leftmost)
                break;
        }
    }
    return n;
}

/* A min-heap of pairs, ordered by rank, then by position. */
struct heap {
    uint64_t *v;
    int64_t n, cap;
};

static void push(struct heap *h, int32_t rank, int64_t at)
{
    uint64_t x = (uint64_t)(uint32_t)rank << 32 | (uint64_t)at;
    int64_t i;

    if (h->n == h->cap) {
        h->cap += h->cap / 2;
        h->v = meg_realloc_array(h->v, (size_t)h->cap, sizeof *h->v);
    }
    for (i = h->n++; i > 0 && h->v[(i - 1) / 2] > x; i = (i - 1) / 2)
        h->v[i] = h->v[(i - 1) / 2];
    h->v[i] = x;
}

static uint64_t pop(struct heap *h)
{
    uint64_t top = h->v[0], x = h->v[--h->n];
    int64_t i = 0;

    for (int64_t k; (k = 2 * i + 1) < h->n; i = k) {
        k += k + 1 < h->n && h->v[k + 1] < h->v[k];
        if (h->v[k] >= x)
            break;
        h->v[i] = h->v[k];
    }
    h->v[i] = x;
    return top;
}

/* A node of a doubly linked list of symbols. */
struct node {
    int32_t prev, next; /* indices of the neighbors; -1 at the ends */
    int32_t rank; /* rank of the pair of this symbol and the next; NO_RANK if the pair has no merge, if its rank was not
                     looked up yet, or if the node was removed */
};

static void requeue_pair(const struct merge_mode *mode, const int32_t *sym, struct node *node, int32_t at,
                         struct heap *h)
{
    int32_t rank;

    if (at < 0 || node[at].next < 0)
        return;
    rank = find_pair_traced(mode, sym[at], sym[node[at].next]).rank;
    if (rank != NO_RANK && rank != node[at].rank)
        push(h, rank, at);
    node[at].rank = rank;
}

/*
 * Merge in rounds.  A round pops the positions of one rank from left to right.  New adjacent pairs are ranked after the
 * round and are therefore not merged in it.  With is_leftmost, a round is at most one merge.  If offsets is not NULL,
 * set it as meg_bpe_merge_offsets does.
 */
static int64_t merge_long(const struct merge_mode *mode, int32_t *sym, int64_t n, int32_t *offsets)
{
    struct node *node = meg_realloc_array(NULL, (size_t)n, sizeof *node);
    struct heap h = { meg_realloc_array(NULL, (size_t)n, sizeof *h.v), 0, n };
    int32_t *merged = meg_realloc_array(NULL, (size_t)n / 2 + 1, sizeof *merged);
    int64_t left = 0;

    for (int64_t i = 0; i < n; i++)
        node[i] = (struct node){ (int32_t)i - 1, i + 1 < n ? (int32_t)i + 1 : -1, NO_RANK };
    for (int64_t i = 0; i + 1 < n; i++)
        requeue_pair(mode, sym, node, (int32_t)i, &h);
    while (h.n > 0) {
        int32_t rank = (int32_t)(h.v[0] >> 32);
        int64_t nmerged = 0;

        while (h.n > 0 && (int32_t)(h.v[0] >> 32) == rank && !(mode->is_leftmost && nmerged > 0)) {
            int32_t at = (int32_t)pop(&h), gone = node[at].next;

            if (node[at].rank != rank)
                continue; /* one of the two symbols was merged after the push */
            sym[at] = find(mode->b, sym[at], sym[gone]).id;
            node[at].next = node[gone].next;
            if (node[gone].next >= 0)
                node[node[gone].next].prev = at;
            node[at].rank = node[gone].rank = NO_RANK;
            merged[nmerged++] = at;
        }
        for (int64_t i = 0; i < nmerged; i++) {
            requeue_pair(mode, sym, node, node[merged[i]].prev, &h);
            requeue_pair(mode, sym, node, merged[i], &h);
        }
    }
    for (int64_t i = 0; i >= 0; i = node[i].next) {
        if (offsets)
            offsets[left] = (int32_t)i;
        sym[left++] = sym[i];
    }
    free(node);
    free(h.v);
    free(merged);
    return left;
}

static int64_t merge(const struct merge_mode *mode, int32_t *sym, int64_t n)
{
    if (n < 2)
        return n;
    return n <= MEG_BPE_SHORT ? merge_short(mode, sym, n) : merge_long(mode, sym, n, NULL);
}

int64_t meg_bpe_merge_offsets(const struct meg_bpe *b, bool is_leftmost, int32_t *sym, int64_t n, int32_t *offsets)
{
    const struct merge_mode mode = { .b = b, .is_leftmost = is_leftmost };

    return merge_long(&mode, sym, n, offsets);
}

int64_t meg_bpe_merge(const struct meg_bpe *b, int32_t *sym, int64_t n)
{
    const struct merge_mode mode = { .b = b };

    return merge(&mode, sym, n);
}

int64_t meg_bpe_merge_leftmost(const struct meg_bpe *b, int32_t *sym, int64_t n, struct meg_bpe_rev_merge *rev_merge)
{
    const struct merge_mode mode = { .b = b, .is_leftmost = true, .rev_merge = rev_merge };

    return merge(&mode, sym, n);
}
