/* Oniguruma's dialect as PCRE2 runs it, and what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/mem.h"
#include "text/regex.h"

/* The matches of a text, joined by '|'. */
static void finds(const char *pattern, const char *text, const char *want)
{
    struct meg_regex *r;
    struct meg_spans got = { 0 };
    struct meg_str joined = { 0 };
    struct meg_err e;

    if (meg_regex_compile(&r, pattern, &e) < 0 ||
        meg_regex_find(r, text, (int64_t)strlen(text), &got, &e) < 0)
        fail_msg("%s", e.msg);
    for (int64_t i = 0; i < got.n; i++)
        meg_str_printf(&joined, i ? "|%.*s" : "%.*s", (int)got.v[i].n, got.v[i].s);
    assert_string_equal(joined.s ? joined.s : "", want);
    meg_regex_free(r);
    meg_str_free(&joined);
    free(got.v);
}

static void reads_the_dialect(void **state)
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

/* What PCRE2 spells in the same way and means otherwise. */
static void means_what_oniguruma_does(void **state)
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
    finds("\\p{Han}", "\u3239\u6F22", "\u6F22"); /* the first is in a script that is shared */
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

static void refuses_what_it_cannot_run(void **state)
{
    (void)state;
    refuses("a(b", "'a(b' (read as 'a(b'), byte 3: missing closing parenthesis");
    refuses("[a[^b]]", "byte 3: a negated class");
    refuses("[a-z&&b]", "byte 5: the intersection");
    refuses("x[a", "byte 2: a class that does not end");
    refuses("\\", "byte 1");
    refuses("\\p{Nonsense}", "byte");
    refuses("a[\\W]", "byte 3: a negated class");
    refuses("[[:^word:]]", "byte 2: a negated class");
    refuses("a\\N", "byte 2: this escape");
    refuses("a{2}+", "byte 2: the repetition of an interval");
    refuses("a{2}?", "byte 2: the repetition of an interval");
    refuses("(?s:.)", "byte 1: options other than");
}

static void says_when_a_text_takes_too_long(void **state)
{
    struct meg_regex *r;
    struct meg_spans got = { 0 };
    struct meg_err e;
    char text[40];

    (void)state;
    memset(text, 'a', sizeof text);
    assert_int_equal(meg_regex_compile(&r, "(a+)+(a+)+$b", &e), MEG_OK);
    assert_int_equal(meg_regex_find(r, text, sizeof text, &got, &e), MEG_OK);
    meg_regex_free(r);
    assert_int_equal(meg_regex_compile(&r, "(?:(?:a|a)+)+b|(a|aa)+c", &e), MEG_OK);
    assert_int_equal(meg_regex_find(r, text, sizeof text, &got, &e), MEG_EFORMAT);
    assert_non_null(strstr(e.msg, "on a text of 40 bytes: match limit exceeded"));
    meg_regex_free(r);
    free(got.v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_the_dialect),
        cmocka_unit_test(means_what_oniguruma_does),
        cmocka_unit_test(refuses_what_it_cannot_run),
        cmocka_unit_test(says_when_a_text_takes_too_long),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
