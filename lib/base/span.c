/* span.c - string views: a pointer and a length; the text is borrowed. */
#include "base/span.h"
#include "base/mem.h"

void meg_spans_add(struct meg_spans *spans, const char *s, int64_t n)
{
    if (spans->n == spans->cap) {
        spans->cap = spans->cap ? 2 * spans->cap : 64;
        spans->v = meg_realloc_array(spans->v, (size_t)spans->cap, sizeof *spans->v);
    }
    spans->v[spans->n++] = (struct meg_span){ s, n };
}
