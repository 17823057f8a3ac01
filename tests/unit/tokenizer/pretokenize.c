/*
 * Pre-tokenizers: compare the hand-written scanners with their patterns, which PCRE2 matches.  \s in the patterns is
 * defined in tokenizer/regex.h.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <utf8proc.h>

#include "golden.h"
#include "base/mem.h"
#include "tokenizer/regex.h"
#include "tokenizer/pretokenize/class_masks.h"
#include "tokenizer/pretokenize/pretokenize.h"
#include "unicode/utf8.h"

static struct meg_regex *regex[MEG_NUM_PRETOKS];

static int compile(void **state)
{
    struct meg_err e;

    (void)state;
    for (int k = 0; k < MEG_NUM_PRETOKS; k++) {
        assert_int_equal(meg_pretok_from_pattern(meg_pretok_pattern[k]), k);
        if (meg_regex_compile(&regex[k], meg_pretok_pattern[k], &e) < 0)
            fail_msg("%s", e.msg);
    }
    return 0;
}

static int release(void **state)
{
    (void)state;
    for (int k = 0; k < MEG_NUM_PRETOKS; k++)
        meg_regex_free(regex[k]);
    return 0;
}

/*
 * Check that each scanner splits text [n] as PCRE2 does.  The text is copied to an allocation of exact size, so that
 * ASan detects reads beyond it.
 */
static void same_as_pcre2(const char *text, int64_t n)
{
    char *s = malloc((size_t)n + (n == 0));
    struct meg_pretokens pretokens = { 0 };
    struct meg_spans want = { 0 };
    struct meg_err e;
    const char *pretoken;
    int64_t len;

    memcpy(s, text, (size_t)n);
    for (int split = 0; split < MEG_NUM_PRETOKS; split++) {
        int64_t i = 0;

        want.n = 0;
        if (meg_regex_find_all(regex[split], s, n, &want, &e) < 0)
            fail_msg("%s", e.msg);
        for (meg_pretokens_split(&pretokens, (enum meg_pretok)split, s, n);
             meg_pretokens_next(&pretokens, &pretoken, &len); i++) {
            if (i == want.n || pretoken != want.v[i].s || len != want.v[i].n)
                fail_msg("pattern %d, pre-token %lld: %lld bytes, want %lld, of: %.*s", split, (long long)i,
                         (long long)len, i < want.n ? (long long)want.v[i].n : -1LL, (int)n, s);
        }
        assert_int_equal(i, want.n);
    }
    meg_pretokens_free(&pretokens);
    free(want.v);
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
        "'\xC5\xBF",
        "we'\xC5\xBF x",
        "HELLOworld",
        "HELLO'LL",
        "\xE4\xB8\xAD"
        "ABC",
        "\xE4\xB8\xAD"
        "ABC\xE4\xB8\xAD"
        "D",
        "\xCC\x81\xCC\x81",
        "(\xCC\x81"
        "A",
        "12345 6789",
        "a/\r\n/b",
        "!!\n\n\nx",
        " \n \n  x",
        "\r\n\r\n",
        "\tx\t\ty",
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

/* Test random texts of many or few different characters, whose ends are anywhere in the scanner's 64-byte blocks. */
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
        "A",
        "S",
        "/",
        "\xC7\x85",
        "\xCA\xB0",
        "\xC5\xBF",
        "\xC3\x89",
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
    for (int round = 0; round < 20000; round++) {
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

/* Test characters of the BMP with letters and spaces around them. */
static void classes_are_those_of_the_pattern(void **state)
{
    struct meg_regex *unassigned;
    struct meg_spans found = { 0 };
    struct meg_err e;

    (void)state;
    assert_int_equal(meg_regex_compile(&unassigned, "\\p{Cn}", &e), MEG_OK);
    for (int32_t cp = 0; cp < 0x10000; cp += cp < 0x3100 ? 1 : 13) {
        char text[16] = "a ";
        int n = 2;

        if (cp >= 0xD800 && cp < 0xE000)
            continue;
        n += meg_utf8_encode(text + n, cp);
        text[n++] = 'a';
        text[n++] = ' ';
        found.n = 0;
        assert_int_equal(meg_regex_find_all(unassigned, text, n, &found, &e), MEG_OK);
        /* the two libraries may have different Unicode versions */
        if (found.n == 0 && utf8proc_category(cp) != UTF8PROC_CATEGORY_CN)
            same_as_pcre2(text, n);
    }
    meg_regex_free(unassigned);
    free(found.v);
}

/* Test the texts of the reference vectors, one by one and concatenated. */
static void splits_reference_texts(void **state)
{
    char *line = NULL;
    size_t cap = 0;
    struct meg_str all = { 0 };
    FILE *f = fopen(shared("golden/tokenizers/gpt2.jsonl"), "r");

    (void)state;
    assert_non_null(f);
    while (getline(&line, &cap, f) > 0) {
        json_t *j = json_loads(line, JSON_ALLOW_NUL, NULL);
        const json_t *text = json_object_get(j, "text");

        same_as_pcre2(json_string_value(text), (int64_t)json_string_length(text));
        meg_str_add(&all, json_string_value(text), json_string_length(text));
        json_decref(j);
    }
    same_as_pcre2(all.s, (int64_t)all.n);
    meg_str_free(&all);
    free(line);
    fclose(f);
}

/* All SIMD variants give every byte at every offset the same classes. */
static void simd_variants_are_equal(void **state)
{
    meg_masks_fn *variant[3];
    int n = meg_masks_variants(variant);

    (void)state;
    for (int byte = 0; byte < 256; byte++) {
        for (int at = 0; at < 64; at++) {
            struct class_masks got[3] = { 0 };
            uint64_t high[3];
            char text[64];

            memset(text, (at + byte) % 2 ? 'x' : '\n', sizeof text);
            text[at] = (char)byte;
            for (int k = 0; k < n; k++) {
                high[k] = variant[k](text, &got[k]);
                assert_int_equal(high[k], high[0]);
                assert_memory_equal(&got[k], &got[0], sizeof *got);
            }
        }
    }
}

static int64_t count(enum meg_pretok split, const char *text, int64_t n)
{
    struct meg_pretokens pretokens = { 0 };
    const char *pretoken;
    int64_t len, k = 0;

    for (meg_pretokens_split(&pretokens, split, text, n); meg_pretokens_next(&pretokens, &pretoken, &len); k++)
        ;
    meg_pretokens_free(&pretokens);
    return k;
}

static void long_runs_of_spaces_take_linear_time(void **state)
{
    const int64_t n = 1 << 20;
    char *text = malloc((size_t)n);

    (void)state;
    for (int split = 0; split < MEG_NUM_PRETOKS; split++) {
        memset(text, ' ', (size_t)n);
        text[n - 1] = 'x';
        assert_int_equal(count((enum meg_pretok)split, text, n), 2);
        memset(text, 'A', (size_t)n);
        assert_int_equal(count((enum meg_pretok)split, text, n), 1);
        memset(text, '!', (size_t)n);
        assert_int_equal(count((enum meg_pretok)split, text, n), 1);
        for (int64_t i = 0; i < n; i++)
            text[i] = i % 2 ? ' ' : '\n';
        assert_true(count((enum meg_pretok)split, text, n) <= 2);
    }
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(splits_known_texts),
        cmocka_unit_test(splits_random_texts),
        cmocka_unit_test(classes_are_those_of_the_pattern),
        cmocka_unit_test(splits_reference_texts),
        cmocka_unit_test(simd_variants_are_equal),
        cmocka_unit_test(long_runs_of_spaces_take_linear_time),
    };

    return cmocka_run_group_tests(tests, compile, release);
}
