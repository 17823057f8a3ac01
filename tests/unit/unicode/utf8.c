/* UTF-8 encoding, decoding and validation, replacement of invalid bytes as in Unicode 15, GPT-2's byte alphabet. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "tokenizer/bpe/byte_alphabet.h"
#include "unicode/utf8.h"

static void each_code_point_round_trips(void **state)
{
    (void)state;
    for (int32_t cp = 0; cp < 0x110000; cp++) {
        char s[4];
        int32_t back;
        int n = meg_utf8_encode(s, cp), is_surrogate = cp >= 0xD800 && cp < 0xE000;

        if ((meg_utf8_decode(s, n, &back) == n) == is_surrogate || (!is_surrogate && back != cp))
            fail_msg("U+%04X", (unsigned)cp);
        for (int cut = 1; cut < n && !is_surrogate; cut++) {
            if (meg_utf8_decode(s, cut, &back) != -cut)
                fail_msg("U+%04X cut to %d bytes", (unsigned)cp, cut);
        }
    }
}

static void replaced(const char *text, const char *want)
{
    struct meg_str out = { 0 };

    meg_utf8_add_replaced(&out, text, (int64_t)strlen(text));
    assert_string_equal(out.s, want);
    meg_str_free(&out);
}

/* Cases are from The Unicode Standard 15.0, tables 3-8 to 3-11. */
static void maximal_subparts_are_replaced_by_u_fffd(void **state)
{
#define R "\xEF\xBF\xBD"
    (void)state;
    replaced("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41", R R R R R R R R "A");
    replaced("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41", R R R R R R R R "A");
    replaced("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42", R R R R R "A" R R "B");
    replaced("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41", R R R R "A");
    replaced("\xC3", R);
}

/* An invalid byte instead of the first byte of any character is found, in ASCII and in text of longer characters. */
static void the_first_invalid_byte_is_found(void **state)
{
    static const char *const good[] = { "a", "\xC3\xA9", "\xE4\xB8\xAD", "\xF0\x9F\x98\x80" };

    (void)state;
    for (int k = 0; k < 4; k++) {
        char text[400];
        int64_t n = 0, len = (int64_t)strlen(good[k]);

        while (n < 200) {
            memcpy(text + n, good[k], (size_t)len);
            n += len;
        }
        assert_int_equal(meg_utf8_find_invalid(text, n), -1);
        for (int64_t at = 0; at < n; at += len) {
            char was = text[at];

            text[at] = (char)0xFF;
            assert_int_equal(meg_utf8_find_invalid(text, n), at);
            text[at] = was;
        }
    }
}

static uint64_t lcg(uint64_t *x)
{
    return (*x = *x * 6364136223846793005u + 1442695040888963407u) >> 33;
}

/* Validation by blocks of 64 bytes equals decoding step by step, for parts of characters in any order. */
static void block_validation_equals_stepwise_decoding(void **state)
{
    static const char *const parts[] = { "a",
                                         "plain text that is longer than a block of thirty-two bytes is",
                                         "\xC3\xA9",
                                         "\xE4\xB8\xAD",
                                         "\xF0\x9F\x98\x80",
                                         "\xE0\xA0\x80",
                                         "\xED\x9F\xBF",
                                         "\xF4\x8F\xBF\xBF",
                                         "\xF0\x90\x80\x80",
                                         "\xC2\x80",
                                         "\xEF\xBF\xBD",
                                         "\xED\xA0\x80",
                                         "\xE0\x9F\xBF",
                                         "\xF0\x8F\xBF\xBF",
                                         "\xF4\x90\x80\x80",
                                         "\xC1\xBF",
                                         "\xF5\x80\x80\x80",
                                         "\x80",
                                         "\xC3",
                                         "\xE4\xB8",
                                         "\xF0\x9F\x98",
                                         "\xFF" };
    enum { GOOD = 11, ALL = sizeof parts / sizeof *parts };
    uint64_t x = 1;

    (void)state;
    for (int round = 0; round < 200000; round++) {
        char text[400];
        int64_t n = 0, want = (int64_t)(lcg(&x) % 200), bad = -1;

        while (n < want) {
            const char *part = parts[lcg(&x) % 64 ? lcg(&x) % GOOD : lcg(&x) % ALL];

            memcpy(text + n, part, strlen(part));
            n += (int64_t)strlen(part);
        }
        for (int64_t i = 0, len; i < n && bad < 0; i += len) {
            int32_t cp;

            len = meg_utf8_decode(text + i, n - i, &cp);
            bad = len < 0 ? i : -1;
        }
        assert_int_equal(meg_utf8_find_invalid(text, n), bad);
    }
}

static void each_byte_has_its_character_in_the_byte_alphabet(void **state)
{
    static const struct {
        int byte;
        int32_t cp;
    } known[] = { { ' ', 0x120 },  { '\n', 0x10A }, { '\t', 0x109 }, { 0, 0x100 },  { 0x7F, 0x121 },
                  { 0xA0, 0x142 }, { 0xAD, 0x143 }, { '!', '!' },    { 0xFF, 0xFF } };
    int32_t next = 0x100;

    (void)state;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        assert_int_equal(meg_byte_alphabet_char(known[i].byte), known[i].cp);
    for (int b = 0; b < 256; b++) {
        assert_int_equal(meg_byte_alphabet_byte(meg_byte_alphabet_char(b)), b);
        if (meg_byte_alphabet_char(b) != b)
            assert_int_equal(meg_byte_alphabet_char(b), next++);
    }
    for (int32_t cp = 0, n = 0; cp < 0x200; cp++) {
        n += meg_byte_alphabet_byte(cp) >= 0;
        assert_int_equal(cp == 0x1FF ? n : 256, 256);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_code_point_round_trips),
        cmocka_unit_test(maximal_subparts_are_replaced_by_u_fffd),
        cmocka_unit_test(the_first_invalid_byte_is_found),
        cmocka_unit_test(block_validation_equals_stepwise_decoding),
        cmocka_unit_test(each_byte_has_its_character_in_the_byte_alphabet),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
