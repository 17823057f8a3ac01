/*
 * char_class.h - the character classes of pre-tokenization patterns: letter (category L*), number (N*), whitespace,
 * other.  The linked utf8proc defines the categories.  Whitespace is the Unicode property White_Space (25 characters),
 * like \s in Python's regex module and in Rust; \s in PCRE2 also includes U+180E.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <utf8proc.h>

enum meg_char_class { MEG_CHAR_OTHER, MEG_CHAR_LETTER, MEG_CHAR_NUMBER, MEG_CHAR_SPACE };

/* A bit mask of Unicode's general categories: MEG_CATEGORY(LU) is uppercase letters. */
#define MEG_CATEGORY(name) (1u << UTF8PROC_CATEGORY_##name)
enum {
    MEG_LETTERS = MEG_CATEGORY(LU) | MEG_CATEGORY(LL) | MEG_CATEGORY(LT) | MEG_CATEGORY(LM) | MEG_CATEGORY(LO),
    MEG_MARKS = MEG_CATEGORY(MN) | MEG_CATEGORY(MC) | MEG_CATEGORY(ME),
    MEG_NUMBERS = MEG_CATEGORY(ND) | MEG_CATEGORY(NL) | MEG_CATEGORY(NO),
    MEG_PUNCTUATION = MEG_CATEGORY(PC) | MEG_CATEGORY(PD) | MEG_CATEGORY(PS) | MEG_CATEGORY(PE) | MEG_CATEGORY(PI) |
                      MEG_CATEGORY(PF) | MEG_CATEGORY(PO)
};

/* Return whether a code point is in one of the categories. */
static inline bool meg_char_is_in(int32_t cp, unsigned categories)
{
    return 1u << utf8proc_category(cp) & categories;
}

bool meg_char_is_space(int32_t c); /* White_Space */

/* Return the class of any code point.  This function is slow; use meg_char_class_table below U+10000. */
enum meg_char_class meg_char_class_of(int32_t cp);

/*
 * Return the classes of U+0000..U+FFFF, as a table for unicode/char_class_simd.h.  The first call fills the table.  Any
 * thread may call this function.
 */
const unsigned char *meg_char_class_table(void);

/* Return the versions of Unicode and utf8proc, such as "Unicode 15.0.0 (utf8proc 2.8.0)". */
const char *meg_unicode_version(void);
