/* codepoints.h - text as an array of code points, and what Unicode does to it, by utf8proc. */
#ifndef MEG_UNICODE_CODEPOINTS_H
#define MEG_UNICODE_CODEPOINTS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/mem.h"

/* Starts as { 0 }, ends with free(v). */
struct meg_codepoints {
    int32_t *v;
    int64_t n, cap;
};

void meg_codepoints_add(struct meg_codepoints *c, int32_t cp);
/* Append the code points to out as UTF-8. */
void meg_codepoints_to_utf8(const struct meg_codepoints *c, struct meg_str *out);

/* Append a code point in lower case by the full mapping, which looks at no other: of U+0130, two. */
void meg_codepoints_add_lower(struct meg_codepoints *c, int32_t cp);

/* Decomposed (NFD; compatible: NFKD), in place. */
void meg_codepoints_decompose(struct meg_codepoints *c, bool is_compatible);

bool meg_char_is_nonspacing_mark(int32_t cp); /* Mn */

#endif
