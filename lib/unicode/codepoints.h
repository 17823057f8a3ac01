/* codepoints.h - text as an array of code points, with lower case and decomposition by utf8proc. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "base/mem.h"

/* A growable array.  Initialize it with { 0 } and free v. */
struct meg_codepoints {
    int32_t *v;
    int64_t n, cap;
};

void meg_codepoints_add(struct meg_codepoints *c, int32_t cp);
/* Append the code points to out as UTF-8. */
void meg_codepoints_to_utf8(const struct meg_codepoints *c, struct meg_str *out);

/* Append the lower case of a code point by the full, context-free mapping, which maps U+0130 to two code points. */
void meg_codepoints_add_lower(struct meg_codepoints *c, int32_t cp);

/* Decompose the code points in place: to NFKD if is_compatible, else to NFD. */
void meg_codepoints_decompose(struct meg_codepoints *c, bool is_compatible);

bool meg_char_is_nonspacing_mark(int32_t cp); /* Unicode category Mn */
