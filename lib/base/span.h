/* span.h - pieces of somebody else's text. */
#ifndef MEG_BASE_SPAN_H
#define MEG_BASE_SPAN_H

#include <stdint.h>

struct meg_span {
    const char *s;
    int64_t n;
};

/* Spans that grow in number.  Starts as { 0 }, ends with free(v). */
struct meg_spans {
    struct meg_span *v;
    int64_t n, cap;
};
void meg_spans_add(struct meg_spans *spans, const char *s, int64_t n);

#endif
