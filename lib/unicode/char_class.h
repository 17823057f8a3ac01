/*
 * char_class.h - the character classes of pre-tokenization patterns: letter (category L*), number (N*), whitespace,
 * other.  The categories are those of the linked utf8proc.  Whitespace is the property White_Space, 25 characters, as
 * \s in Python's regex module and in Rust; \s of PCRE2 also includes U+180E.
 */
#ifndef MEG_UNICODE_CHAR_CLASS_H
#define MEG_UNICODE_CHAR_CLASS_H

#include <stdint.h>

#include "base/decls.h"

MEG_BEGIN_DECLS

enum meg_char_class { MEG_CHAR_OTHER, MEG_CHAR_LETTER, MEG_CHAR_NUMBER, MEG_CHAR_SPACE };

/* The class of any code point; slow, so use the table below U+10000. */
enum meg_char_class meg_char_class_of(int32_t cp);

/* The classes of U+0000..U+FFFF, as a table for unicode/char_class_simd.h.  The first call fills it; thread-safe. */
const unsigned char *meg_char_class_table(void);

/* The version of Unicode and of utf8proc: "Unicode 15.0.0 (utf8proc 2.8.0)". */
const char *meg_unicode_version(void);

MEG_END_DECLS

#endif
