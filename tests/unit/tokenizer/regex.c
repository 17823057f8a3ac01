/* Oniguruma patterns translated to PCRE2: accepted and rejected syntax, matches, and the match limit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/mem.h"
#include "tokenizer/regex.h"

/* Check that all matches of a pattern in text, joined with |, equal want. */
static void finds(const char *pattern, const char *text, const char *want)
{
    struct meg_regex *r;
    struct meg_spans got = { 0 };
    struct meg_str joined = { 0 };
    struct meg_err e;

    if (meg_regex_compile(&r, pattern, &e) < 0 || meg_regex_find_all(r, text, (int64_t)strlen(text), &got, &e) < 0)
        fail_msg("%s", e.msg);
    for (int64_t i = 0; i < got.n; i++)
        meg_str_printf(&joined, i ? "|%.*s" : "%.*s", (int)got.v[i].n, got.v[i].s);
    assert_string_equal(joined.s ? joined.s : "", want);
    meg_regex_free(r);
    meg_str_free(&joined);
    free(got.v);
}

static void the_dialect_is_accepted(void **state)
{
    (void)state;
    finds("\\s+", "a \xE1\xA0\x8E b", " | ");
    finds("[^\\s]+", "a \xE1\xA0\x8E b", "a|\xE1\xA0\x8E|b");
    finds("[\\S]+", "a \xE1\xA0\x8E b", "a|\xE1\xA0\x8E|b");
    finds("\\h+", "xyz 12aF g", "12aF");
    finds(" ?[^(\\s|[.,!?\xE2\x80\xA6])]+", "a|b c.d(e", "a|b| c|d|e");
    finds("x*", "axxb", "|xx|");
    finds("(?=b)", "abb", "|");
    finds("$", "", "");
    finds("[[:digit:]]+", "a12", "12");
    finds("[]a]+", "b]a", "]a");
}

/* Most of these patterns are invalid in PCRE2 or have a different meaning there. */
static void matches_equal_those_of_oniguruma(void **state)
{
    (void)state;
    finds("^a", "aa\na", "a|a");
    finds("a$", "aa\na\n", "a|a");
    finds("a.b", "a\nb", "");
    finds("(?m)a.b", "a\nb", "a\nb");
    finds("(?m-i:a.)b", "a\nb", "a\nb");
    finds("a{,2}b", "aaab", "aab");
    finds("a{1,2}+", "aaa b", "aaa");
    finds("xa{,2}+", "xaaa x", "xaaa|x");
    finds("ba{1}?", "ba b", "ba|b");
    finds("\\x{61}{2}", "aaa", "aa");
    finds("\\w+", "e\u0301\u00B2 \u2460", "e\u0301\u00B2");
    finds("\\W", "e\u0301\u00B2\u2460", "\u2460");
    finds("[\\w]+", "e\u0301\u00B2 \u2460", "e\u0301");
    finds("\\u00e9[\\u4E00-\\u9FFF]", "\u00e9\u6F22", "\u00e9\u6F22");
    finds("\\bb", "ab \u00B2b \u2460b", "b");
    finds("b\\B", "ab b\u00B2 b\u2460", "b");
    finds("\\v", "\n\v", "\v");
    finds("[\\v]", "\n\v", "\v");
    finds("\\p{Han}", "\u3239\u6F22", "\u6F22"); /* U+3239 has Han in its Script_Extensions only */
    finds("\\p{^Han}", "\u3239\u6F22", "\u3239");
    finds("[[:punct:]]+", "a+\u2603!", "+\u2603!");
    finds("[[:alpha:]]+", "\u24D0 \u0903", "\u24D0|\u0903");
    finds("[[:^alpha:]]+", "\u24D0 \u0903", " ");
    finds("[[:space:]]+", "a\u180E\xC2\x85", "\xC2\x85");
    finds("[[:graph:]]+", "\uE000 \u200B\u2003", "\uE000|\u200B");
}

static void refuses(const char *pattern, const char *message)
{
    struct meg_regex *r;
    struct meg_err e;

    assert_int_equal(meg_regex_compile(&r, pattern, &e), MEG_EFORMAT);
    if (!strstr(e.msg, message))
        fail_msg("%s", e.msg);
}

static void unsupported_patterns_are_rejected(void **state)
{
    (void)state;
    refuses("a(b", "'a(b': PCRE2 rejects its translation 'a(b' at byte offset 3: missing closing parenthesis");
    refuses("[a[^b]]", "byte 3: a negated class");
    refuses("[a-z&&b]", "byte 5: the intersection");
    refuses("x[a", "byte 2: the class has no closing bracket");
    refuses("\\", "byte offset 1");
    refuses("\\p{Nonsense}", "byte");
    refuses("a[\\W]", "byte 3: a negated class");
    refuses("[[:^word:]]", "byte 2: a negated class");
    refuses("a\\N", "byte 2: this escape");
    refuses("a{2}+", "byte 2: a + or ? after this quantifier");
    refuses("a{2}?", "byte 2: a + or ? after this quantifier");
    refuses("(?s:.)", "byte 1: inline options other than");
    refuses("a\\Gb", "byte 2: this escape is not supported");
}

static void a_text_that_takes_too_long_is_an_error(void **state)
{
    struct meg_regex *r;
    struct meg_spans got = { 0 };
    struct meg_err e;
    char text[40];

    (void)state;
    memset(text, 'a', sizeof text);
    assert_int_equal(meg_regex_compile(&r, "(a+)+(a+)+$b", &e), MEG_OK);
    assert_int_equal(meg_regex_find_all(r, text, sizeof text, &got, &e), MEG_OK);
    meg_regex_free(r);
    assert_int_equal(meg_regex_compile(&r, "(?:(?:a|a)+)+b|(a|aa)+c", &e), MEG_OK);
    assert_int_equal(meg_regex_find_all(r, text, sizeof text, &got, &e), MEG_EFORMAT);
    assert_non_null(strstr(e.msg, "on a text of 40 bytes: match limit exceeded"));
    meg_regex_free(r);
    free(got.v);
}

/* ---- searches with a growing window ---- */

/* Append the matches of PCRE2 in text [n] to out.  The pattern must have the same meaning in PCRE2 and Oniguruma. */
static void find_plainly(const char *pattern, const char *text, size_t n, struct meg_spans *out)
{
    size_t at = 0, last = PCRE2_UNSET, *found;
    int error;
    pcre2_code *code = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
                                     PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, &error, &at, NULL);
    pcre2_match_data *match = pcre2_match_data_create_from_pattern(code, NULL);

    found = pcre2_get_ovector_pointer(match);
    for (at = 0; at <= n && pcre2_match(code, (PCRE2_SPTR)text, n, at, 0, match, NULL) > 0;) {
        if (found[1] > found[0] || found[1] != last) {
            meg_spans_add(out, text + found[0], (int64_t)(found[1] - found[0]));
            at = last = found[1];
            continue;
        }
        do
            at++;
        while (at < n && (text[at] & 0xC0) == 0x80);
    }
    pcre2_match_data_free(match);
    pcre2_code_free(code);
}

/* Fill text with runs of repeated short words, until it has n bytes or up to three more; return its size. */
static size_t make_text(char *text, size_t n, uint32_t *seed)
{
    static const char *const words[] = { "a", "b", "c", "ab", "\xC3\xA9", "\xF0\x9F\x98\x80", " ", "\n" };
    size_t at = 0;

    while (at < n) {
        const char *word;
        uint32_t run;

        *seed = *seed * 1664525 + 1013904223;
        word = words[*seed >> 8 & 7];
        run = *seed >> 20 & 1 ? *seed >> 24 & 3 : 200 + (*seed >> 24) * 2;
        for (; run > 0 && at < n; run--, at += strlen(word))
            memcpy(text + at, word, strlen(word));
    }
    return at;
}

static void matches_of_long_texts_do_not_depend_on_the_window(void **state)
{
    static const char *const patterns[] = {
        "[ab]+c|[ab]",
        "[ab]+c",
        "\\p{L}+|\\p{N}{1,3}|.",
        "(?<=a)b+",
        "(?<!b)a+",
        "a(?!b)",
        "[ab]+(?=\\n)|b",
        "x?",
        "^a*",
        "a*$",
        "(?:a|b)*c?",
        "\xC3\xA9+|[^a]",
        "a{2,300}",
        "c.{0,500}c",
        "(a+)b+\\1",
        "a.*b|c",
        "(?i)AB+",
        "\\x{E9}+a",
        " *\\n| +(?!b)| +",
    };
    uint32_t seed = 1;

    (void)state;
    for (int k = 0; k < 40; k++) {
        char text[3010];
        const size_t n = make_text(text, k < 20 ? 250 + (size_t)k : 3000, &seed);

        for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
            struct meg_spans got = { 0 }, want = { 0 };
            struct meg_regex *r;
            struct meg_err e;

            if (meg_regex_compile(&r, patterns[i], &e) < 0 || meg_regex_find_all(r, text, (int64_t)n, &got, &e) < 0)
                fail_msg("%s", e.msg);
            find_plainly(patterns[i], text, n, &want);
            assert_int_equal(got.n, want.n);
            for (int64_t m = 0; m < want.n; m++)
                assert_true(got.v[m].s == want.v[m].s && got.v[m].n == want.v[m].n);
            meg_regex_free(r);
            free(got.v);
            free(want.v);
        }
    }
}

static int find_in_repeated(const char *pattern, const char *word, size_t n, int64_t *nfound, struct meg_err *e)
{
    struct meg_spans got = { 0 };
    struct meg_regex *regex;
    char *text = malloc(n);
    int r;

    for (size_t i = 0; i < n; i++)
        text[i] = word[i % strlen(word)];
    assert_int_equal(meg_regex_compile(&regex, pattern, e), MEG_OK);
    r = meg_regex_find_all(regex, text, (int64_t)n, &got, e);
    *nfound = got.n;
    meg_regex_free(regex);
    free(got.v);
    free(text);
    return r;
}

/* On n bytes without a c, each pattern takes about n^2 / 2 steps, which would take minutes for 1 MiB. */
static void a_quadratic_search_is_an_error(void **state)
{
    static const char *const patterns[] = { "[ab]+c|[ab]", "[ab]+c", "[ab]+(?=c)|a|b" };
    struct meg_err e;
    int64_t n;

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(find_in_repeated(patterns[i], "ab", 1 << 18, &n, &e), MEG_EFORMAT);
        assert_non_null(strstr(e.msg, "on a text of 262144 bytes: match limit exceeded; the expression backtracks "
                                      "too often on this text; split the text into shorter lines"));
        assert_int_equal(find_in_repeated(patterns[i], "ab", 1000, &n, &e), MEG_OK);
    }
}

static void a_long_match_is_not_an_error(void **state)
{
    struct meg_err e;
    int64_t n;

    (void)state;
    assert_int_equal(find_in_repeated("[ab]+c|[ab]+", "ab", 4 << 20, &n, &e), MEG_OK);
    assert_int_equal(n, 1);
    assert_int_equal(find_in_repeated("\\s+(?!\\S)|\\s+|\\S", " ", 4 << 20, &n, &e), MEG_OK);
    assert_int_equal(n, 1);
    assert_int_equal(find_in_repeated("x+y|z", "ab", 4 << 20, &n, &e), MEG_OK);
    assert_int_equal(n, 0);
    assert_int_equal(find_in_repeated("[ab]{1,1000}|c", "ab", 4 << 20, &n, &e), MEG_OK);
    assert_int_equal(n, ((4 << 20) + 999) / 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_dialect_is_accepted),
        cmocka_unit_test(matches_equal_those_of_oniguruma),
        cmocka_unit_test(unsupported_patterns_are_rejected),
        cmocka_unit_test(a_text_that_takes_too_long_is_an_error),
        cmocka_unit_test(matches_of_long_texts_do_not_depend_on_the_window),
        cmocka_unit_test(a_quadratic_search_is_an_error),
        cmocka_unit_test(a_long_match_is_not_an_error),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
