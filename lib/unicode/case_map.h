/* case_map.h - upper and lower case of any script, as Python's str has them. */
#ifndef MEG_UNICODE_CASE_MAP_H
#define MEG_UNICODE_CASE_MAP_H

#include <stdbool.h>
#include <stdint.h>

#include "base/mem.h"

/* str.isupper and str.islower of one character: the properties Uppercase and Lowercase. */
bool meg_char_is_upper(int32_t cp);
bool meg_char_is_lower(int32_t cp);

/* Unicode's properties Cased and Case_Ignorable, which tell where a capital sigma becomes a final one. */
bool meg_char_is_cased(int32_t cp);
bool meg_char_is_case_ignorable(int32_t cp);

/* Append s, well-formed UTF-8, as str.lower gives it: U+0130 becomes two characters, and a capital
 * sigma that ends a word the final one. */
void meg_utf8_add_lower(struct meg_str *out, const char *s, int64_t n);

#endif
