/* Host memory: zeroed allocations, growing byte strings, arenas. */
#include "child.h"

#include <signal.h>

#include "base/mem.h"

static void strings_grow_and_end_with_a_zero_byte(void **state)
{
    struct meg_str s = { 0 };
    int i;

    (void)state;
    meg_str_add(&s, NULL, 0);
    assert_string_equal(s.s, "");
    meg_str_add(&s, "a\0b", 3);
    assert_int_equal(s.n, 3);
    meg_str_printf(&s, "%d,%s", 12, "x");
    assert_memory_equal(s.s, "a\0b12,x", 8);
    for (i = 0; i < 1000; i++)
        meg_str_printf(&s, "%04d", i);
    assert_int_equal(s.n, 7 + 4000);
    assert_string_equal(s.s + s.n - 4, "0999");
    meg_str_remove_prefix(&s, 0);
    assert_int_equal(s.n, 7 + 4000);
    meg_str_remove_prefix(&s, s.n - 3);
    assert_int_equal(s.n, 3);
    assert_string_equal(s.s, "999");
    meg_str_free(&s);
    assert_null(s.s);
    meg_str_remove_prefix(&s, 0);
    assert_null(s.s);
    meg_str_free(&s);
    meg_str_free(NULL);
}

static void copies_are_independent(void **state)
{
    char *a = meg_strdup("word"), *b = meg_strndup("word", 2), *c = meg_new(0);
    int *v = meg_realloc_array(NULL, 3, sizeof *v);

    (void)state;
    assert_string_equal(a, "word");
    assert_string_equal(b, "wo");
    assert_non_null(c);
    v[2] = 5;
    v = meg_realloc_array(v, 300, sizeof *v);
    assert_int_equal(v[2], 5);
    free(a);
    free(b);
    free(c);
    free(v);
}

static void too_many(void *arg)
{
    meg_realloc_array(arg, SIZE_MAX / 2, 3);
}

static void an_allocation_that_fails_ends_the_process(void **state)
{
    struct child c;

    (void)state;
    child_run(&c, too_many, NULL);
    assert_int_equal(c.status, 1);
    assert_non_null(strstr(c.err, "out of memory"));
}

static void arena_blocks_are_zeroed_aligned_and_counted(void **state)
{
    struct meg_arena a;
    unsigned char *p, *q;
    size_t i;

    (void)state;
    assert_int_equal(meg_arena_init(&a, "activations", 100000, NULL), 0);
    p = meg_arena_alloc(&a, 100, 64);
    q = meg_arena_alloc(&a, 99900 - 128, 64);
    assert_ptr_equal(q, p + 128);
    assert_int_equal((uintptr_t)p % (2 << 20), 0);
    for (i = 0; i < 99900 - 128; i++)
        assert_int_equal(q[i], 0);
    assert_int_equal(a.used, 99900);
    meg_arena_free(&a);
    meg_arena_free(&a);
    meg_arena_free(NULL);
}

static void overdraw(void *arg)
{
    struct meg_arena a;

    (void)arg;
    meg_arena_init(&a, "workspace", 4096, NULL);
    meg_arena_alloc(&a, 4097, 1);
}

static void an_arena_overflow_is_a_failed_assertion(void **state)
{
    struct child c;

    (void)state;
    child_run(&c, overdraw, NULL);
    assert_int_equal(c.status, 128 + SIGABRT);
}

static void an_arena_too_large_for_the_machine_is_an_error(void **state)
{
    static const size_t sizes[] = { (size_t)1 << 56, SIZE_MAX, SIZE_MAX - (3 << 20) };
    struct meg_arena a;
    struct meg_err e;
    size_t i;

    (void)state;
    for (i = 0; i < 3; i++) {
        assert_int_equal(meg_arena_init(&a, "parameters", sizes[i], &e), MEG_EFAIL);
        assert_memory_equal(e.msg, "parameters: ", 12);
        meg_arena_free(&a);
    }
    assert_int_equal(meg_arena_init(&a, "nothing", 0, &e), 0);
    meg_arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(strings_grow_and_end_with_a_zero_byte),
        cmocka_unit_test(copies_are_independent),
        cmocka_unit_test(an_allocation_that_fails_ends_the_process),
        cmocka_unit_test(arena_blocks_are_zeroed_aligned_and_counted),
        cmocka_unit_test(an_arena_overflow_is_a_failed_assertion),
        cmocka_unit_test(an_arena_too_large_for_the_machine_is_an_error),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
