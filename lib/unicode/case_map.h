/* case_map.h - upper and lower case of all scripts, as in Python's str. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "base/mem.h"

/*
 * Return whether a code point has the Unicode property Uppercase (is_upper) or Lowercase (is_lower), as Python's
 * str.isupper and str.islower do.
 */
bool meg_char_is_upper(int32_t cp);
bool meg_char_is_lower(int32_t cp);

/*
 * Return whether a code point has the Unicode property Cased (is_cased) or Case_Ignorable (is_case_ignorable).  These
 * properties determine whether the lower case of a capital sigma is a final sigma.
 */
bool meg_char_is_cased(int32_t cp);
bool meg_char_is_case_ignorable(int32_t cp);

/*
 * Append the lower case of s [n], which is valid UTF-8, as Python's str.lower does.  U+0130 becomes two code points,
 * and a capital sigma at the end of a word becomes a final sigma.
 */
void meg_utf8_add_lower(struct meg_str *out, const char *s, int64_t n);
