/* tokenizer/wordcache.h: a lookup returns the ids with which the word was added, or does not find the word. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <cmocka.h>

#include "tokenizer/wordcache.h"

/* Create word number k, of 1 to 59 bytes, and its 0 to 12 ids; return the length of the word. */
static int64_t word(int64_t k, char s[64], int32_t ids[16], int64_t *nids)
{
    int n = snprintf(s, 64, "%llx", (unsigned long long)k * 0x9E3779B97F4A7C15u);

    *nids = k % 13;
    for (int64_t i = 0; i < *nids; i++)
        ids[i] = (int32_t)(k + i);
    while (n < 60 && k % 4 == 0 && n < (k / 4) % 60)
        s[n++] = '-';
    return n;
}

static bool holds(struct meg_wordcache *c, int64_t k)
{
    char s[64];
    int32_t ids[16], copy[16 + MEG_WORD_IDS];
    const int32_t *there;
    const struct meg_wordcache_entry *e;
    struct meg_wordcache_lookup w;
    int64_t nids, n = word(k, s, ids, &nids);

    meg_wordcache_prefetch(c, &w, s, n, s + n);
    meg_wordcache_prefetch_rest(c, &w, 1);
    if (!(e = meg_wordcache_find(c, &w)))
        return false;
    assert_int_equal(e->tag, k % 1000);
    assert_int_equal(meg_word_ids(c, e, &there), nids);
    assert_memory_equal(there, ids, (size_t)nids * sizeof *ids);
    assert_int_equal(meg_word_copy(c, e, copy), nids);
    assert_memory_equal(copy, ids, (size_t)nids * sizeof *ids);
    assert_int_equal(meg_wordcache_get(c, s, n, &there), nids);
    return true;
}

static void add(struct meg_wordcache *c, int64_t k)
{
    char s[64];
    int32_t ids[16];
    int64_t nids, n = word(k, s, ids, &nids);

    meg_wordcache_add(c, s, n, ids, nids, (uint16_t)(k % 1000));
}

static int64_t held(struct meg_wordcache *c, int64_t n)
{
    int64_t there = 0;

    for (int64_t k = 0; k < n; k++)
        there += holds(c, k);
    return there;
}

static void words_are_found_with_their_ids_or_not_at_all(void **state)
{
    struct meg_wordcache c;

    (void)state;
    meg_wordcache_init(&c);
    for (int64_t k = 0; k < 1000; k++) {
        assert_false(holds(&c, k));
        add(&c, k);
        assert_true(holds(&c, k));
    }
    assert_int_equal(held(&c, 1000), 1000); /* so few words that none is evicted */
    for (int64_t k = 1000; k < 1500000; k++) {
        add(&c, k);
        assert_true(holds(&c, k));
    }
    assert_in_range(held(&c, 1500000), 1000, 1 << 20);
    meg_wordcache_free(&c);
}

/* Few of 200,000 words are evicted while the table doubles, and none by a lookup. */
static void the_table_grows_with_the_number_of_words(void **state)
{
    struct meg_wordcache c;
    uint64_t mask;
    int64_t there;

    (void)state;
    meg_wordcache_init(&c);
    mask = c.mask;
    for (int64_t k = 0; k < 200000; k++)
        add(&c, k);
    assert_in_range(c.mask, 4 * mask, SIZE_MAX);
    there = held(&c, 200000);
    assert_in_range(there, 199800, 200000);
    for (int64_t k = 200000; k-- > 0;)
        holds(&c, k);
    assert_int_equal(held(&c, 200000), there);
    meg_wordcache_free(&c);
}

static void very_long_words_are_not_cached(void **state)
{
    static char s[5000];
    static const int32_t id = 5;
    const int32_t *ids;
    struct meg_wordcache c;

    (void)state;
    memset(s, 'x', sizeof s);
    meg_wordcache_init(&c);
    meg_wordcache_add(&c, s, sizeof s, &id, 1, 0);
    assert_int_equal(meg_wordcache_get(&c, s, sizeof s, &ids), 0);
    meg_wordcache_add(&c, s, 1000, &id, 1, 0);
    assert_int_equal(meg_wordcache_get(&c, s, 1000, &ids), 1);
    assert_int_equal(ids[0], 5);
    assert_int_equal(meg_wordcache_get(&c, s, 999, &ids), 0);
    meg_wordcache_free(&c);
}

/* Simulate two long words of equal hash and length. */
static void long_words_are_compared(void **state)
{
    static const char one[] = "a word of many bytes", other[] = "a word of more bytes";
    const int32_t id = 1;
    struct meg_wordcache c;
    struct meg_wordcache_lookup w;

    (void)state;
    meg_wordcache_init(&c);
    meg_wordcache_add(&c, one, sizeof one, &id, 1, 0);
    meg_wordcache_prefetch(&c, &w, one, sizeof one, one + sizeof one);
    meg_wordcache_prefetch_rest(&c, &w, 1);
    assert_non_null(meg_wordcache_find(&c, &w));
    w.s = other;
    assert_null(meg_wordcache_find(&c, &w));
    meg_wordcache_free(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_are_found_with_their_ids_or_not_at_all),
        cmocka_unit_test(the_table_grows_with_the_number_of_words),
        cmocka_unit_test(very_long_words_are_not_cached),
        cmocka_unit_test(long_words_are_compared),
    };

    return cmocka_run_group_tests_name("wordcache", tests, NULL, NULL);
}
