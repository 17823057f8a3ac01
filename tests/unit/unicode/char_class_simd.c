/* Compare the SIMD variants of character classes that this CPU supports with the table. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include "unicode/char_class_simd.h"
#include "unicode/utf8.h"

static uint64_t lcg(uint64_t *x)
{
    return (*x = *x * 6364136223846793005u + 1442695040888963407u) >> 33;
}

/*
 * Return a non-ASCII code point of two, three or four bytes; surrogates, which valid text does not contain, are
 * harmless.
 */
static int32_t any_character(uint64_t *x)
{
    static const int32_t from[] = { 0x80, 0x800, 0x10000 }, to[] = { 0x800, 0x10000, 0x110000 };
    uint64_t k = lcg(x) % 7 % 3;

    return from[k] + (int32_t)(lcg(x) % (uint64_t)(to[k] - from[k]));
}

static void same_as_the_table(meg_class_masks_fn *way, const unsigned char *table, const char *text, uint64_t first)
{
    struct meg_class_masks got = way(table, text, first);

    assert_int_equal((got.class_bit[0] | got.class_bit[1] | got.non_bmp) & ~first, 0);
    for (; first; first &= first - 1) {
        int at = __builtin_ctzll(first);
        uint64_t cls = (got.class_bit[0] >> at & 1) | (got.class_bit[1] >> at & 1) << 1;
        int32_t cp;

        meg_utf8_decode_unchecked(text + at, &cp);
        assert_int_equal(got.non_bmp >> at & 1, cp >= 0x10000);
        assert_int_equal(cls, cp < 0x10000 ? table[cp] : 0);
    }
}

static void all_variants_equal_the_table(void **state)
{
    unsigned char *table = malloc(MEG_CLASS_TABLE_BYTES);
    meg_class_masks_fn *way[2];
    int nways = meg_class_masks_variants(way);
    uint64_t x = 1;

    (void)state;
    for (int i = 0; i < MEG_CLASS_TABLE_BYTES; i++)
        table[i] = lcg(&x) % 4;
    for (int round = 0; round < 100000; round++) {
        const uint64_t ascii = lcg(&x) % 8;
        char *text = malloc(MEG_CLASS_TEXT_BYTES); /* reads beyond it are errors under ASan */
        uint64_t first = 0;

        for (int n = 0; n < MEG_CLASS_TEXT_BYTES;) {
            char c[4];
            int32_t cp = lcg(&x) % 8 < ascii ? 'a' : any_character(&x);
            int len = meg_utf8_encode(c, cp);

            if (n < 64 && cp >= 0x80)
                first |= (uint64_t)1 << n;
            for (int k = 0; k < len && n < MEG_CLASS_TEXT_BYTES; k++)
                text[n++] = c[k];
        }
        for (int k = 0; k < nways; k++) {
            same_as_the_table(way[k], table, text, first);
            same_as_the_table(way[k], table, text, first & lcg(&x) * lcg(&x));
        }
        free(text);
    }
    free(table);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(all_variants_equal_the_table) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
