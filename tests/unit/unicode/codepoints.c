/* Canonical decomposition: the order of combining marks against a plain sort. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>
#include <utf8proc.h>

#include "base/clock.h"
#include "unicode/codepoints.h"

static const int32_t marks[] = { 0x301, 0x323, 0x345, 0x327, 0x334, 0x302, 0x5B0, 0x3099, 0x302A };
enum { MARKS = sizeof marks / sizeof *marks };

static int class_of(int32_t cp)
{
    return utf8proc_get_property(cp)->combining_class;
}

/* Exchange adjacent code points until all are in order (UAX 15, Canonical Ordering Algorithm). */
static void order(int32_t *v, int64_t n)
{
    for (int64_t stop = n; stop > 1; stop--) {
        for (int64_t i = 1; i < stop; i++) {
            int32_t cp = v[i];

            if (class_of(cp) == 0 || class_of(v[i - 1]) <= class_of(cp))
                continue;
            v[i] = v[i - 1];
            v[i - 1] = cp;
        }
    }
}

static uint64_t lcg(uint64_t *x)
{
    return (*x = *x * 6364136223846793005u + 1442695040888963407u) >> 33;
}

static void marks_are_ordered_as_by_a_stable_sort(void **state)
{
    uint64_t x = 1;

    (void)state;
    for (int round = 0; round < 3000; round++) {
        int64_t n = (int64_t)(lcg(&x) % 200), letters = 2 + (int64_t)(lcg(&x) % 100);
        struct meg_codepoints c = { 0 };
        int32_t want[200];

        for (int64_t i = 0; i < n; i++) {
            want[i] = lcg(&x) % (uint64_t)letters ? marks[lcg(&x) % MARKS] : 'a';
            meg_codepoints_add(&c, want[i]);
        }
        order(want, n);
        meg_codepoints_decompose(&c, false);
        assert_int_equal(c.n, n);
        if (n > 0)
            assert_memory_equal(c.v, want, (size_t)n * sizeof *want);
        free(c.v);
    }
}

static void a_million_marks_are_ordered_in_time(void **state)
{
    enum { N = 1000000 };
    struct meg_codepoints c = { 0 };
    double start_s;

    (void)state;
    for (int64_t i = 0; i < N; i++)
        meg_codepoints_add(&c, marks[i % 2]);
    start_s = meg_now_s();
    meg_codepoints_decompose(&c, false);
    assert_true(meg_now_s() - start_s < 1);
    assert_int_equal(c.n, N);
    for (int64_t i = 0; i < N; i++)
        assert_int_equal(c.v[i], marks[i < N / 2]);
    free(c.v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(marks_are_ordered_as_by_a_stable_sort),
        cmocka_unit_test(a_million_marks_are_ordered_in_time),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
