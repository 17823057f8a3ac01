/*
 * tokenizer/bpe/bpe.h: compare the merges with a direct implementation of the definition, on random tables and short
 * and long inputs.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "sanitized.h"
#include "tokenizer/bpe/bpe.h"

enum { PAIRS = 60, LONGEST = 400, ROUNDS = IS_SANITIZED ? 150 : 1500, INPUTS = 4 };

static uint64_t lcg(uint64_t *x)
{
    return (*x = *x * 6364136223846793005u + 1442695040888963407u) >> 33;
}

struct rule {
    int32_t left, right, id;
};

/*
 * Merge all occurrences of the adjacent pair with the lowest index in rules, from left to right, until no pair is left;
 * return the number of symbols.
 */
static int64_t merge_all(const struct rule *rules, int nrules, int32_t *sym, int64_t n)
{
    for (;;) {
        int best = nrules;
        int64_t to = 0;

        for (int64_t i = 0; i + 1 < n; i++) {
            for (int k = 0; k < best; k++) {
                if (rules[k].left == sym[i] && rules[k].right == sym[i + 1])
                    best = k;
            }
        }
        if (best == nrules)
            return n;
        for (int64_t i = 0; i < n; i++) {
            if (i + 1 < n && sym[i] == rules[best].left && sym[i + 1] == rules[best].right) {
                sym[to++] = rules[best].id;
                i++;
            } else {
                sym[to++] = sym[i];
            }
        }
        n = to;
    }
}

/*
 * Merge the leftmost of the adjacent pairs with the lowest rank, where rules[i] has rank[i], until no pair is left;
 * return the number of symbols.
 */
static int64_t merge_leftmost(const struct rule *rules, int nrules, const int32_t *rank, int32_t *sym, int64_t n)
{
    for (;;) {
        int best = -1;
        int64_t at = 0;

        for (int64_t i = 0; i + 1 < n; i++) {
            for (int k = 0; k < nrules; k++) {
                if (rules[k].left == sym[i] && rules[k].right == sym[i + 1] && (best < 0 || rank[k] < rank[best])) {
                    best = k;
                    at = i;
                }
            }
        }
        if (best < 0)
            return n;
        sym[at] = rules[best].id;
        n--;
        memmove(sym + at + 1, sym + at + 2, (size_t)(n - at - 1) * sizeof *sym);
    }
}

/* Input and output of meg_bpe_stream. */
struct streamed {
    const int32_t *sym;
    int64_t n, at, nout;
    int32_t out[LONGEST];
};

static int64_t read_some(void *ctx, int32_t *sym, int64_t n)
{
    struct streamed *x = ctx;

    n = n < x->n - x->at ? n : x->n - x->at;
    memcpy(sym, x->sym + x->at, (size_t)n * sizeof *sym);
    x->at += n;
    return n;
}

static int put_some(void *ctx, const int32_t *sym, int64_t n, struct meg_err *e)
{
    struct streamed *x = ctx;

    (void)e;
    assert_true(x->nout + n <= LONGEST);
    memcpy(x->out + x->nout, sym, (size_t)n * sizeof *sym);
    x->nout += n;
    return 0;
}

static int nuncut; /* inputs that meg_bpe_stream rejects, because a window has no safe split point */

static void streams_as(const struct meg_bpe *b, bool is_leftmost, int64_t window, const int32_t *sym, int64_t n,
                       const int32_t *want, int64_t nwant)
{
    struct streamed x = { .sym = sym, .n = n };
    struct meg_err e;

    if (meg_bpe_stream(&(struct meg_bpe_stream){ b, is_leftmost, read_some, put_some, &x, window, 4 * n }, &e) < 0) {
        nuncut++;
        return;
    }
    assert_int_equal(x.nout, nwant);
    assert_memory_equal(x.out, want, (size_t)nwant * sizeof *want);
}

/* Pairs are in random order, so a pair may use a symbol that a later pair creates, as in some files. */
static void merges_equal_the_definition(void **state)
{
    uint64_t x = 7;

    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        struct meg_bpe b = { 0 }, ties = { 0 }; /* ties: in two of three rounds, pairs have equal ranks */
        struct rule rules[PAIRS] = { { 0 } };
        int32_t rank[PAIRS];
        int letters = 1 + (int)(lcg(&x) % 4), n = 0;

        meg_bpe_init(&b, PAIRS);
        while (n < PAIRS) {
            struct rule r = { (int32_t)(lcg(&x) % (uint64_t)(letters + n)),
                              (int32_t)(lcg(&x) % (uint64_t)(letters + n)), letters + n };
            int i = 0;

            while (i < n && (rules[i].left != r.left || rules[i].right != r.right))
                i++;
            if (i == n)
                rules[n++] = r;
        }
        for (int i = n - 1; i > 0; i--) {
            int k = (int)(lcg(&x) % (uint64_t)(i + 1));
            struct rule r = rules[i];

            rules[i] = rules[k];
            rules[k] = r;
        }
        meg_bpe_init(&ties, PAIRS);
        for (int i = 0; i < n; i++) {
            rank[i] = i / (1 + round % 3);
            meg_bpe_add(&b, rules[i].left, rules[i].right, i, rules[i].id);
            meg_bpe_add(&ties, rules[i].left, rules[i].right, rank[i], rules[i].id);
        }
        for (int input = 0; input < INPUTS; input++) {
            int32_t sym[LONGEST] = { 0 }, from[LONGEST], want[LONGEST], as_one[LONGEST];
            int64_t window = 2 + (int64_t)(lcg(&x) % 40);
            int64_t len = (int64_t)(lcg(&x) % (input < 2 ? MEG_BPE_SHORT + 1 : LONGEST + 1)), nwant;

            for (int64_t i = 0; i < len; i++)
                sym[i] = lcg(&x) % 50 == 0 ? -1 : (int32_t)(lcg(&x) % (uint64_t)letters);
            memcpy(from, sym, sizeof from);
            memcpy(want, sym, sizeof want);
            memcpy(as_one, sym, sizeof as_one);
            nwant = merge_all(rules, n, want, len);
            assert_int_equal(meg_bpe_merge(&b, sym, len), nwant);
            assert_memory_equal(sym, want, (size_t)nwant * sizeof *sym);
            streams_as(&b, false, window, from, len, want, nwant);
            memcpy(want, as_one, sizeof want);
            nwant = merge_leftmost(rules, n, rank, want, len);
            assert_int_equal(meg_bpe_merge_leftmost(&ties, as_one, len, NULL), nwant);
            assert_memory_equal(as_one, want, (size_t)nwant * sizeof *want);
            streams_as(&ties, true, window, from, len, want, nwant);
        }
        meg_bpe_free(&b);
        meg_bpe_free(&ties);
    }
    print_message("# %d of %d had no safe cut in windows of 2 to 41 symbols\n", nuncut, 2 * ROUNDS * INPUTS);
    assert_true(nuncut < 2 * ROUNDS * INPUTS / 100);
}

/*
 * Ten million symbols (one million with a sanitizer) take a second; a quadratic algorithm would take hours and exceed
 * the time limit of a test.
 */
static void merging_a_long_input_is_not_quadratic(void **state)
{
    const int64_t n = IS_SANITIZED ? 1000000 : 10000000;
    int32_t *sym = malloc((size_t)n * sizeof *sym);
    struct meg_bpe b = { 0 };

    (void)state;
    meg_bpe_init(&b, 20);
    for (int32_t i = 0; i < 20; i++)
        meg_bpe_add(&b, i, i, i, i + 1);
    memset(sym, 0, (size_t)n * sizeof *sym);
    /* rule i merges two runs of 2^i: runs of 2^20 remain, and one for each binary 1 of the remainder */
    assert_int_equal(meg_bpe_merge(&b, sym, n), n / (1 << 20) + __builtin_popcount(n % (1 << 20)));
    free(sym);
    meg_bpe_free(&b);
}

static void a_pair_added_twice_has_its_last_rank(void **state)
{
    int32_t sym[] = { 0, 1, 2 };
    struct meg_bpe b = { 0 };

    (void)state;
    meg_bpe_init(&b, 3);
    meg_bpe_add(&b, 0, 1, 0, 3);
    meg_bpe_add(&b, 1, 2, 1, 4);
    meg_bpe_add(&b, 0, 1, 2, 3);
    assert_int_equal(meg_bpe_merge(&b, sym, 3), 2);
    assert_int_equal(sym[0], 0);
    assert_int_equal(sym[1], 4);
    meg_bpe_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(merges_equal_the_definition),
        cmocka_unit_test(merging_a_long_input_is_not_quadratic),
        cmocka_unit_test(a_pair_added_twice_has_its_last_rank),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
