/* The double-array trie against a list of strings. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/mem.h"
#include "tokenizer/trie.h"

static uint64_t lcg(uint64_t *x)
{
    return (*x = *x * 6364136223846793005u + 1442695040888963407u) >> 33;
}

/*
 * Create n random keys, each of 1 to max bytes out of the first `letters` bytes of the alphabet, and drop duplicates.
 * Return the number of keys; key i has the value i.  The caller frees the strings.
 */
static int64_t make_keys(struct meg_trie_key *key, int64_t n, const unsigned char *alphabet, uint64_t letters,
                         uint64_t max, uint64_t *x)
{
    int64_t have = 0;

    for (int64_t tries = 0; tries < n; tries++) {
        int64_t len = 1 + (int64_t)(lcg(x) % max), i = 0;
        char *s = malloc((size_t)len);

        for (int64_t k = 0; k < len; k++)
            s[k] = (char)alphabet[lcg(x) % letters];
        while (i < have && (key[i].n != len || memcmp(key[i].s, s, (size_t)len) != 0))
            i++;
        if (i < have) {
            free(s);
            continue;
        }
        key[have] = (struct meg_trie_key){ s, len, (int32_t)have };
        have++;
    }
    return have;
}

/* Compare the values of all prefixes of s with a linear search over the keys. */
static void check_prefixes(const struct meg_trie *t, const struct meg_trie_key *key, int64_t nkeys, const char *s,
                           int64_t n)
{
    uint32_t node = MEG_TRIE_ROOT;
    bool has_node = true;

    for (int64_t len = 1; len <= n; len++) {
        int32_t want = -1, got = -1;

        for (int64_t i = 0; i < nkeys; i++) {
            if (key[i].n == len && memcmp(key[i].s, s, (size_t)len) == 0)
                want = key[i].value;
        }
        has_node = has_node && meg_trie_step(t, &node, (unsigned char)s[len - 1], &got);
        assert_int_equal(has_node ? got : -1, want);
        assert_int_equal(meg_trie_find(t, s, len), want);
    }
}

static void prefixes_equal_those_of_a_linear_search(void **state)
{
    static const struct {
        int64_t n;
        uint64_t letters, max;
    } sizes[] = { { 0, 1, 1 },    { 1, 1, 1 },     { 300, 256, 1 }, { 40, 2, 6 },
                  { 400, 3, 12 }, { 400, 256, 5 }, { 2000, 7, 9 } };
    unsigned char alphabet[256];
    struct meg_trie_key *key = calloc(2000, sizeof *key);
    uint64_t x = 7;

    (void)state;
    for (int round = 0; round < 12; round++) {
        for (int i = 0; i < 256; i++)
            alphabet[i] = (unsigned char)i;
        for (int i = 255; i > 0 && round > 0; i--) { /* round 0 keeps the order 0, 1, ... */
            uint64_t k = lcg(&x) % (uint64_t)(i + 1);
            unsigned char c = alphabet[i];

            alphabet[i] = alphabet[k];
            alphabet[k] = c;
        }
        for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
            struct meg_trie t = { 0 };
            struct meg_err e;
            int64_t n = make_keys(key, sizes[k].n, alphabet, sizes[k].letters, sizes[k].max, &x);

            assert_int_equal(meg_trie_build(&t, key, n, &e), MEG_OK);
            for (int64_t i = 0; i < n; i += 1 + n / 100)
                check_prefixes(&t, key, n, key[i].s, key[i].n);
            for (int i = 0; i < 100; i++) {
                char s[16];

                for (int j = 0; j < 16; j++)
                    s[j] = (char)alphabet[lcg(&x) % (lcg(&x) % 2 ? sizes[k].letters : 256)];
                check_prefixes(&t, key, n, s, 16);
            }
            for (int64_t i = 0; i < n; i++)
                free((char *)(uintptr_t)key[i].s);
            meg_trie_free(&t);
        }
    }
    free(key);
}

static void a_duplicate_key_is_rejected(void **state)
{
    struct meg_trie_key key[] = { { "b", 1, 0 }, { "ab", 2, 1 }, { "a", 1, 2 }, { "ab", 2, 3 } };
    struct meg_trie t = { 0 };
    struct meg_err e;

    (void)state;
    assert_int_equal(meg_trie_build(&t, key, 4, &e), MEG_EFORMAT);
    assert_string_equal(e.msg, "duplicate string 'ab'");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prefixes_equal_those_of_a_linear_search),
        cmocka_unit_test(a_duplicate_key_is_rejected),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
