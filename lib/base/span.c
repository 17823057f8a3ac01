/* span.c - string views: a pointer and a length; the text is borrowed. */
#include "base/span.h"
#include "base/mem.h"

void meg_spans_add(struct meg_spans *spans, const char *s, int64_t n)
{
    spans->v = meg_grow(spans->v, spans->n, &spans->cap, sizeof *spans->v);
    spans->v[spans->n++] = (struct meg_span){ s, n };
}
