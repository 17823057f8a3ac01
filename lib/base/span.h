/* span.h - string views: a pointer and a length; the text is borrowed. */
#pragma once
#include <stdint.h>

struct meg_span {
    const char *s;
    int64_t n;
};

/* A growable array of spans.  Initialize it with { 0 } and free v. */
struct meg_spans {
    struct meg_span *v;
    int64_t n, cap;
};
void meg_spans_add(struct meg_spans *spans, const char *s, int64_t n);
