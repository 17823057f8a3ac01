/*
 * char_class.c - the character classes of pre-tokenization patterns: letter (category L*), number (N*), whitespace,
 * other.
 */
#include "unicode/char_class.h"
#include <pthread.h>
#include <stdio.h>
#include "unicode/char_class_simd.h"

static unsigned char table[MEG_CLASS_TABLE_BYTES];
static pthread_once_t once = PTHREAD_ONCE_INIT;

bool meg_char_is_space(int32_t c)
{
    return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

enum meg_char_class meg_char_class_of(int32_t cp)
{
    if (meg_char_is_space(cp))
        return MEG_CHAR_SPACE;
    if (meg_char_is_in(cp, MEG_LETTERS))
        return MEG_CHAR_LETTER;
    return meg_char_is_in(cp, MEG_NUMBERS) ? MEG_CHAR_NUMBER : MEG_CHAR_OTHER;
}

static void fill_table(void)
{
    for (int32_t c = 0; c < 0x10000; c++)
        table[c] = (unsigned char)meg_char_class_of(c);
}

const char *meg_unicode_version(void)
{
    static char text[64];

    snprintf(text, sizeof text, "Unicode %s (utf8proc %s)", utf8proc_unicode_version(), utf8proc_version());
    return text;
}

const unsigned char *meg_char_class_table(void)
{
    pthread_once(&once, fill_table);
    return table;
}
