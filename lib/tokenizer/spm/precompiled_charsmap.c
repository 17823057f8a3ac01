/* precompiled_charsmap.c - the compiled character map of a SentencePiece normalizer. */
#include "tokenizer/spm/precompiled_charsmap.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "unicode/utf8.h"

#define IS_VALUE ((uint32_t)1 << 31)
enum { ENDS_STRING = 1 << 8, BLOCK = 256 };

static uint32_t base_of(uint32_t at, uint32_t unit)
{
    return at ^ (unit >> 10) << ((unit & 1 << 9) >> 6);
}

static uint32_t read_u32(const unsigned char *p)
{
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/*
 * Check that the base of each node is less than n, the number of units.  Since n is a multiple of 256, the index of
 * each child is less than n.  Check that each value is the offset of the first byte of a character.
 */
static int check_units(const struct meg_charsmap *m, uint32_t n, int64_t nto, struct meg_err *e)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t unit = m->unit[i], value = unit & ~IS_VALUE;

        if (!(unit & IS_VALUE) && base_of(i, unit) >= n)
            return meg_fail(e, MEG_EFORMAT, "byte %" PRId64 ": unit %u refers to unit %u, but the trie has %u units",
                            4 + 4 * (int64_t)i, i, base_of(i, unit), n);
        if ((unit & IS_VALUE) && (value >= nto || ((unsigned char)m->replacements[value] & 0xC0) == 0x80))
            return meg_fail(e, MEG_EFORMAT,
                            "byte %" PRId64 ": unit %u refers to offset %u, where no replacement begins",
                            4 + 4 * (int64_t)i, i, value);
    }
    return 0;
}

int meg_charsmap_load(struct meg_charsmap *m, const void *bytes, int64_t n, struct meg_err *e)
{
    const unsigned char *p = bytes;
    int64_t ntrie = n < 4 ? 0 : read_u32(p), nto = n - 4 - ntrie, bad;

    if (ntrie < 4 * BLOCK || ntrie % (4 * BLOCK) || nto < 1)
        return meg_fail(e, MEG_EFORMAT,
                        "byte 0: the trie has %" PRId64 " bytes in a map of %" PRId64
                        " bytes; the size of the trie must be a positive multiple of %d, and replacements must follow",
                        ntrie, n, 4 * BLOCK);
    if (p[n - 1] != 0)
        return meg_fail(e, MEG_EFORMAT,
                        "byte %" PRId64 ": found 0x%02x, expected the zero byte that ends the last replacement", n - 1,
                        p[n - 1]);
    if ((bad = meg_utf8_find_invalid((const char *)p + 4 + ntrie, nto)) >= 0)
        return meg_fail(e, MEG_EFORMAT, "byte %" PRId64 ": invalid UTF-8 in a replacement: 0x%02x", 4 + ntrie + bad,
                        p[4 + ntrie + bad]);
    m->unit = meg_realloc_array(NULL, (size_t)ntrie / 4, sizeof *m->unit);
    for (int64_t i = 0; i < ntrie / 4; i++)
        m->unit[i] = read_u32(p + 4 + 4 * i);
    m->replacements = meg_new((size_t)nto);
    memcpy(m->replacements, p + 4 + ntrie, (size_t)nto);
    return check_units(m, (uint32_t)(ntrie / 4), nto, e);
}

void meg_charsmap_free(struct meg_charsmap *m)
{
    free(m->unit);
    free(m->replacements);
}

uint32_t meg_charsmap_root(const struct meg_charsmap *m)
{
    return m->unit ? base_of(0, m->unit[0]) : 0;
}

bool meg_charsmap_step(const struct meg_charsmap *m, uint32_t *node, unsigned char c, const char **to)
{
    uint32_t at = *node ^ c, unit;

    *to = NULL;
    if (!m->unit)
        return false;
    unit = m->unit[at];
    if ((unit & (IS_VALUE | 0xFF)) != c)
        return false;
    *node = base_of(at, unit);
    if ((unit & ENDS_STRING) && (m->unit[*node] & IS_VALUE))
        *to = m->replacements + (m->unit[*node] & ~IS_VALUE);
    return true;
}

int64_t meg_charsmap_longest(const struct meg_charsmap *m, const char *s, int64_t n, const char **to)
{
    uint32_t node = meg_charsmap_root(m);
    int64_t longest = 0;
    const char *t;

    for (int64_t i = 0; i < n && meg_charsmap_step(m, &node, (unsigned char)s[i], &t); i++) {
        bool is_char_end = i + 1 == n || ((unsigned char)s[i + 1] & 0xC0) != 0x80;

        if (t && is_char_end) {
            longest = i + 1;
            *to = t;
        }
    }
    return longest;
}
