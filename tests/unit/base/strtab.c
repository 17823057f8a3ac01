/* String tables: insertion one by one, bulk indexing, growth, duplicates. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/strtab.h"

enum { MANY = 5000 }; /* the table grows several times */

/*
 * Write string k to s and return its length.  The string is k zero bytes if k < 4, else k in decimal, followed by
 * " and so on" if k is a multiple of 3.
 */
static int64_t spell(char s[32], int64_t k)
{
    if (k < 4) {
        memset(s, 0, (size_t)k);
        return k;
    }
    return snprintf(s, 32, "%lld%s", (long long)k, k % 3 ? "" : " and so on");
}

static void holds(const struct meg_strtab *t, int64_t n)
{
    char s[32];

    assert_int_equal(t->n, n);
    for (int64_t k = 0; k < n; k++) {
        int64_t len = spell(s, k);
        struct meg_str got = meg_strtab_get(t, k);

        assert_int_equal(meg_strtab_find(t, s, len), k);
        assert_int_equal(meg_strtab_find_hashed(t, s, len, meg_strtab_prefetch(t, s, len)), k);
        assert_int_equal(got.n, len);
        assert_memory_equal(got.s, s, (size_t)len);
    }
    for (int64_t k = n; k < n + 100; k++)
        assert_int_equal(meg_strtab_find(t, s, spell(s, k)), -1);
}

static void strings_added_one_by_one_are_found(void **state)
{
    struct meg_strtab t = { 0 };
    char s[32];

    (void)state;
    assert_int_equal(meg_strtab_find(&t, "", 0), -1);
    for (int64_t k = 0; k < MANY; k++) {
        assert_int_equal(meg_strtab_add(&t, s, spell(s, k)), k);
        assert_int_equal(meg_strtab_add(&t, s, spell(s, k / 2)), k / 2);
    }
    holds(&t, MANY);
    meg_strtab_free(&t);
}

static struct meg_strtab appended(int64_t n)
{
    struct meg_strtab t = { 0 };
    char s[32];

    meg_strtab_reserve(&t, 1);
    for (int64_t k = 0; k < n; k++)
        meg_strtab_append(&t, s, spell(s, k));
    return t;
}

/* Test fewer strings than the prefetch distance, as many, and more. */
static void strings_appended_and_then_indexed_are_found(void **state)
{
    char s[32];

    (void)state;
    for (int64_t n = 0; n <= MANY; n += n < 40 ? 1 : MANY - 40) {
        struct meg_strtab t = appended(n);

        for (int64_t k = 0; k < n; k++)
            assert_int_equal(meg_strtab_find(&t, s, spell(s, k)), -1);
        assert_int_equal(meg_strtab_index(&t), -1);
        holds(&t, n);
        assert_int_equal(meg_strtab_add(&t, "new", 3), n);
        assert_int_equal(meg_strtab_find(&t, "new", 3), n);
        meg_strtab_free(&t);
    }
}

static void reserving_capacity_also_indexes(void **state)
{
    struct meg_strtab t = appended(700);

    (void)state;
    meg_strtab_reserve(&t, MANY);
    holds(&t, 700);
    meg_strtab_free(&t);
}

static void the_second_of_two_duplicates_is_reported(void **state)
{
    static const int64_t apart[] = { 1, 2, 15, 16, 17, 100 };
    char s[32];

    (void)state;
    for (size_t i = 0; i < sizeof apart / sizeof *apart; i++) {
        struct meg_strtab t = appended(200);

        meg_strtab_append(&t, s, spell(s, 200 - apart[i]));
        for (int64_t k = 201; k < 240; k++) /* strings after the duplicate do not hide it */
            meg_strtab_append(&t, s, spell(s, k));
        assert_int_equal(meg_strtab_index(&t), 200);
        meg_strtab_free(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(strings_added_one_by_one_are_found),
        cmocka_unit_test(strings_appended_and_then_indexed_are_found),
        cmocka_unit_test(reserving_capacity_also_indexes),
        cmocka_unit_test(the_second_of_two_duplicates_is_reported),
    };

    return cmocka_run_group_tests_name("strtab", tests, NULL, NULL);
}
