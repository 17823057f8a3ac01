/*
 * char_class.h - what split patterns ask of a character: letter (category L*), number (N*), white space
 * or none of them.  Categories are those of the linked utf8proc; white space is the property
 * White_Space, 25 characters, which is \s of Python's regex and of Rust but not of PCRE2 (which
 * adds U+180E).
 */
#ifndef MEG_UNICODE_CHAR_CLASS_H
#define MEG_UNICODE_CHAR_CLASS_H

#include <stdint.h>

enum meg_char_class { MEG_CHAR_OTHER, MEG_CHAR_LETTER, MEG_CHAR_NUMBER, MEG_CHAR_SPACE };

/* The class of a character above U+FFFF, or of any: slow. */
enum meg_char_class meg_char_class_of(int32_t cp);

/* The classes of U+0000..U+FFFF as a table of unicode/char_class_simd.h.  Made by the first call; any thread may call. */
const unsigned char *meg_char_class_table(void);

/* "Unicode 15.0.0 (utf8proc 2.8.0)": whose categories these are. */
const char *meg_unicode_version(void);

#endif
