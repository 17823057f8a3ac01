/* The scanner against PCRE2, which runs the pattern as written (\s spelled out: text/uclass.h). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <utf8proc.h>

#include "text/split_gpt2.h"
#include "text/utf8.h"

#define WS                                                                                         \
    "\\t-\\r "                                                                                     \
    "\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}"
static const char pattern[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^" WS
                              "\\p{L}\\p{N}]+|[" WS "]+(?![^" WS "])|[" WS "]+";

static pcre2_code *regex;
static pcre2_match_data *match;

static int compile(void **state)
{
    int error;
    PCRE2_SIZE at;

    (void)state;
    regex = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &error,
                          &at, NULL);
    assert_non_null(regex);
    match = pcre2_match_data_create_from_pattern(regex, NULL);
    return pcre2_jit_compile(regex, PCRE2_JIT_COMPLETE);
}

static int release(void **state)
{
    (void)state;
    pcre2_match_data_free(match);
    pcre2_code_free(regex);
    return 0;
}

/* Exactly n bytes in memory of their own, so that a read beyond them shows under ASan. */
static void same_as_pcre2(const char *text, int64_t n)
{
    char *s = malloc((size_t)n + (n == 0));
    struct meg_pieces pieces = { 0 };
    PCRE2_SIZE *at = pcre2_get_ovector_pointer(match), i = 0;
    const char *piece;
    int64_t len;

    memcpy(s, text, (size_t)n);
    for (meg_pieces_of(&pieces, s, n); meg_pieces_next(&pieces, &piece, &len); i = at[1]) {
        assert_true(piece == s + i);
        assert_int_equal(
            pcre2_match(regex, (PCRE2_SPTR)s, (PCRE2_SIZE)n, i, PCRE2_ANCHORED, match, NULL), 1);
        if (len != (int64_t)(at[1] - at[0]))
            fail_msg("byte %zu: %lld bytes, not %zu, of: %.*s", i, (long long)len, at[1] - at[0],
                     (int)n, s);
    }
    assert_int_equal(i, n);
    meg_pieces_free(&pieces);
    free(s);
}

static void splits_known_texts(void **state)
{
    static const char *const texts[] = {
        "",
        " ",
        "  ",
        "\n",
        " \n",
        "\n ",
        "a",
        "'",
        "'s",
        "'ll",
        "'l",
        "''s",
        "!'s",
        "x's's",
        " 's",
        "it's 're've'd'm'll't'S'RE",
        "'re",
        "don't stop",
        "a  b   c",
        "a \n b",
        "a\t\tb",
        "a\t b",
        "end  ",
        "12ab34",
        "x2\xC2\xB2",
        "\xE3\x80\x80",
        "a\xE3\x80\x80\xE3\x80\x80"
        "b",
        "a\xC2\xA0\xC2\xA0"
        "b",
        "a \xE3\x80\x80",
        "a\xE3\x80\x80 b",
        "\xE1\xA0\x8E",
        "a \xE1\xA0\x8E b",
        "\xE0\xA4\xB9\xE0\xA4\xBF\xE0\xA4\xA8\xE0\xA5\x8D\xE0\xA4\xA6\xE0\xA5\x80",
        "\xF0\x9F\x98\x80\xF0\x9F\x98\x80 \xF0\x9F\x98\x80",
        "\xF0\x90\x90\x80x",
        "a'\xC3\xA9",
    };

    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        same_as_pcre2(texts[i], (int64_t)strlen(texts[i]));
    same_as_pcre2("a\0b \0\0'\0s", 9);
}

static uint64_t lcg(uint64_t *x)
{
    return (*x = *x * 6364136223846793005u + 1442695040888963407u) >> 33;
}

/* Every length around the 64 bytes of a block, from an alphabet where everything meets everything. */
static void splits_random_texts(void **state)
{
    static const char *const parts[] = {
        " ",
        " ",
        "a",
        "b",
        "s",
        "t",
        "re",
        "ve",
        "ll",
        "'",
        "'",
        "7",
        "!",
        "-",
        "\n",
        "\t",
        "\r",
        "\xC3\xA9",
        "\xC2\xB2",
        "\xC2\xA0",
        "\xE3\x80\x80",
        "\xE4\xB8\xAD",
        "\xE2\x80\x99",
        "\xCC\x81",
        "\xF0\x9F\x98\x80",
        "\xF0\x9D\x94\x84",
        "\xE2\x80\xA8",
    };
    uint64_t x = 1;

    (void)state;
    for (int round = 0; round < 30000; round++) {
        char text[400];
        int64_t n = 0, want = (int64_t)(lcg(&x) % 300);
        size_t few = 2 + lcg(&x) % (sizeof parts / sizeof *parts - 1), first = lcg(&x);

        while (n < want) {
            const char *part = parts[(first + lcg(&x) % few) % (sizeof parts / sizeof *parts)];

            memcpy(text + n, part, strlen(part));
            n += (int64_t)strlen(part);
        }
        same_as_pcre2(text, n);
    }
}

/* Characters of the BMP, with letters and blanks around them. */
static void classes_are_those_of_the_pattern(void **state)
{
    (void)state;
    for (int32_t cp = 0; cp < 0x10000; cp += cp < 0x3100 ? 1 : 13) {
        char text[16] = "a ";
        int n = 2;

        if (cp >= 0xD800 && cp < 0xE000)
            continue;
        n += meg_utf8_put(text + n, cp);
        text[n++] = 'a';
        text[n++] = ' ';
        if (utf8proc_category(cp) != UTF8PROC_CATEGORY_CN) /* PCRE2 may know a later Unicode */
            same_as_pcre2(text, n);
    }
}

static void a_megabyte_of_blanks_is_two_pieces(void **state)
{
    const int64_t n = 1 << 20;
    char *text = malloc((size_t)n);
    struct meg_pieces pieces = { 0 };
    const char *piece;
    int64_t len;

    (void)state;
    memset(text, ' ', (size_t)n);
    text[n - 1] = 'x';
    meg_pieces_of(&pieces, text, n);
    assert_true(meg_pieces_next(&pieces, &piece, &len));
    assert_int_equal(len, n - 2);
    assert_true(meg_pieces_next(&pieces, &piece, &len));
    assert_int_equal(len, 2);
    assert_false(meg_pieces_next(&pieces, &piece, &len));
    meg_pieces_free(&pieces);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(splits_known_texts),
        cmocka_unit_test(splits_random_texts),
        cmocka_unit_test(classes_are_those_of_the_pattern),
        cmocka_unit_test(a_megabyte_of_blanks_is_two_pieces),
    };

    return cmocka_run_group_tests(tests, compile, release);
}
