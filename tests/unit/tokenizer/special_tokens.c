/* tokenizer/special_tokens.h: which of several tokens that match at one position is used. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "tokenizer/special_tokens.h"

/* Append the negated bytes of the text. */
static int encode_bytes(void *ctx, const char *text, int64_t n, struct meg_ids *out, const struct meg_id_sink *sink,
                        struct meg_err *e)
{
    (void)ctx;
    (void)sink;
    (void)e;
    for (int64_t i = 0; i < n; i++)
        meg_ids_add(out, -text[i]);
    return 0;
}

/* Check the ids of "xabcdy" with the tokens, whose ids are 100, 101, ..., and with the other text as negated bytes. */
static void check(const char *const *tokens, int n, const int32_t *ids, int64_t nids)
{
    struct meg_trie_key key[8];
    struct meg_special_tokens s = { 0 };
    struct meg_ids out = { 0 };
    struct meg_err e;

    for (int i = 0; i < n; i++)
        key[i] = (struct meg_trie_key){ tokens[i], (int64_t)strlen(tokens[i]), 100 + i };
    assert_int_equal(meg_special_tokens_build(&s, key, n, &e), 0);
    assert_int_equal(meg_special_tokens_encode(&s, "xabcdy", 6, &out, NULL,
                                               (struct meg_ordinary_encoder){ .encode = encode_bytes }, &e),
                     0);
    assert_int_equal(out.n, nids);
    assert_memory_equal(out.v, ids, (size_t)nids * sizeof *ids);
    free(out.v);
    meg_special_tokens_free(&s);
}

static void the_first_match_of_the_list_is_used(void **state)
{
    static const char *const middle[] = { "bc", "ab", "abc", "abcd", "a" }, *const longest[] = { "abcd", "abc", "a" },
                             *const shortest[] = { "a", "abc", "abcd" };

    (void)state;
    check(middle, 5, (const int32_t[]){ -'x', 101, -'c', -'d', -'y' }, 5);
    check(longest, 3, (const int32_t[]){ -'x', 100, -'y' }, 3);
    check(shortest, 3, (const int32_t[]){ -'x', 100, -'b', -'c', -'d', -'y' }, 6);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(the_first_match_of_the_list_is_used) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
