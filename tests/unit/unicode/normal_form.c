/* Normalization in segments against utf8proc on the complete text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <utf8proc.h>

#include "base/mem.h"
#include "unicode/normal_form.h"
#include "unicode/utf8.h"

static struct meg_normal_form forms[8]; /* the last four use the variant without SIMD */
enum { MOST = 64 << 20 };

static int make(void **state)
{
    meg_class_masks_fn *way[2];
    int nways = meg_class_masks_variants(way);

    (void)state;
    for (int k = 0; k < 8; k++) {
        meg_normal_form_init(&forms[k], k & 1, k & 2);
        if (k & 4)
            forms[k].find_classes = way[nways - 1];
    }
    return 0;
}

static void same_as_utf8proc(const char *text, int64_t n)
{
    for (int k = 0; k < 8; k++) {
        utf8proc_uint8_t *want;
        struct meg_str got = { 0 };
        struct meg_err e;
        utf8proc_ssize_t nwant = utf8proc_map((const utf8proc_uint8_t *)text, n, &want,
                                              UTF8PROC_STABLE | (k & 1 ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) |
                                                  (k & 2 ? UTF8PROC_COMPAT : 0));

        assert_int_equal(meg_normal_form_add(&forms[k], text, n, MOST, &got, &e), MEG_OK);
        assert_int_equal(got.n, nwant);
        assert_memory_equal(got.s ? got.s : "", want, (size_t)nwant);
        free(want);
        meg_str_free(&got);
    }
}

/* Test each character below U+20000 and some beyond, after a mark, jamo or letter and between such characters. */
static void each_character_equals_utf8proc(void **state)
{
    static const int32_t around[] = { 'a', 0x301, 0x323, 0x1100, 0x1161, 0x11A8, 0x9BE, 0xFF76 };
    const size_t naround = sizeof around / sizeof *around;

    (void)state;
    for (int32_t cp = 1; cp < 0x30000; cp += cp < 0x20000 ? 1 : 7) {
        char text[16];
        int n = 0;

        if (cp >= 0xD800 && cp < 0xE000)
            continue;
        n += meg_utf8_encode(text + n, around[(uint32_t)cp % naround]);
        n += meg_utf8_encode(text + n, cp);
        same_as_utf8proc(text, n);
        n += meg_utf8_encode(text + n, around[(uint32_t)(cp / 8) % naround]);
        n += meg_utf8_encode(text + n, around[(uint32_t)(cp / 64) % naround]);
        same_as_utf8proc(text, n);
    }
}

static uint64_t lcg(uint64_t *x)
{
    return (*x = *x * 6364136223846793005u + 1442695040888963407u) >> 33;
}

static void random_texts_equal_utf8proc(void **state)
{
    static const int32_t some[] = { 'a',     'b',     'E',     ' ',    0xE9,   0x1EC7,  0x301,   0x302,
                                    0x323,   0x327,   0x345,   0x915,  0x93C,  0x958,   0x9C7,   0x9BE,
                                    0xDD9,   0xDCF,   0xDCA,   0x1100, 0x1161, 0x11A8,  0xAC00,  0xAC01,
                                    0x4E2D,  0xF900,  0x3C9,   0x2126, 0xFB01, 0x1D15E, 0x11099, 0x110BA,
                                    0x1F600, 0x2F800, 0x20000, 0xFF76, 0xFF9E, 0x3A9 };
    uint64_t x = 1;

    (void)state;
    for (int round = 0; round < 15000; round++) {
        char text[400];
        int64_t n = 0, want = (int64_t)(lcg(&x) % 120);
        size_t few = 2 + lcg(&x) % (sizeof some / sizeof *some - 1), first = lcg(&x);

        while (n < want) {
            int64_t times = lcg(&x) % 8 ? 1 : 40;

            for (int32_t cp = some[(first + lcg(&x) % few) % (sizeof some / sizeof *some)]; times > 0 && n < want;
                 times--)
                n += meg_utf8_encode(text + n, cp);
        }
        same_as_utf8proc(text, n);
    }
}

/* Around the end of a block of 64 bytes, a mark that does not compose precedes one that composes with the letter. */
static void marks_at_the_end_of_a_block_are_composed(void **state)
{
    static const int32_t steady[] = { 0x316, 0x5B0, 0x1DC2, 0x1D165 };
    char text[80];

    (void)state;
    for (int64_t before = 56; before < 68; before++)
        for (size_t k = 0; k < sizeof steady / sizeof *steady; k++) {
            int64_t n = before;

            memset(text, 'a', (size_t)n);
            n += meg_utf8_encode(text + n, steady[k]);
            n += meg_utf8_encode(text + n, 0x301);
            same_as_utf8proc(text, n);
        }
}

/* Test texts longer than SEGMENT (unicode/normal_form.c), of three characters in repeated and in random order. */
static void long_texts_equal_utf8proc(void **state)
{
    static const int32_t what[][3] = { { 0xAC01, 0xAC00, 0x11A8 }, { 0xFB2C, 0x1D160, 0xFB2C },
                                       { 'e', 0x301, 0x323 },      { 0x1100, 0x1161, 0x11A8 },
                                       { 0x344, 0x301, 0x323 },    { 0x2F800, 0x20000, 0x2F801 },
                                       { 0xE9, 0x9C7, 0x9BE } };
    enum { NBYTES = 20000 };
    char *text = malloc(NBYTES + 4);
    uint64_t x = 2;

    (void)state;
    for (size_t k = 0; k < 2 * sizeof what / sizeof *what; k++) {
        int64_t n = 0;

        for (int i = 0; n < NBYTES; i++)
            n += meg_utf8_encode(text + n, what[k / 2][k % 2 ? lcg(&x) % 3 : (unsigned)i % 3]);
        same_as_utf8proc(text, n);
    }
    free(text);
}

static void output_beyond_the_size_limit_is_an_error(void **state)
{
    static const char *const what[] = { "\xF0\x9D\x85\xA0", "\xCC\x81" }; /* U+1D160, U+0301 */
    static const char *const says[] = {
        "the text is longer than 64 MiB after normalization; split the text",
        "the text has more than 4194304 consecutive combining marks, which must be normalized together; split the text"
    };
    enum { NBYTES = 24 << 20 };
    char *text = malloc(NBYTES);

    (void)state;
    for (int k = 0; k < 2; k++) {
        const size_t n = strlen(what[k]);
        struct meg_str got = { 0 };
        struct meg_err e;

        for (size_t i = 0; i < NBYTES; i++)
            text[i] = what[k][i % n];
        assert_int_equal(meg_normal_form_add(&forms[1], text, NBYTES, MOST, &got, &e), MEG_EFORMAT);
        assert_string_equal(e.msg, says[k]);
        meg_str_free(&got);
    }
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_character_equals_utf8proc),           cmocka_unit_test(random_texts_equal_utf8proc),
        cmocka_unit_test(marks_at_the_end_of_a_block_are_composed), cmocka_unit_test(long_texts_equal_utf8proc),
        cmocka_unit_test(output_beyond_the_size_limit_is_an_error),
    };

    return cmocka_run_group_tests(tests, make, NULL);
}
