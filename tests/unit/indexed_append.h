/* indexed_append.h - append a sequence to a token dataset. */
#pragma once
#include <stdlib.h>
#include "base/mem.h"
#include "data/indexed/indexed.h"

/* Append a sequence of n >= 0 tokens.  Return MEG_EFORMAT if an id is out of the range of the token type. */
static inline int indexed_append(struct meg_indexed_writer *w, const int32_t *ids, int64_t n, struct meg_err *e)
{
    void *tokens = meg_new((size_t)n * 8);
    int r = meg_indexed_convert(w, ids, n, tokens, e);

    if (r == 0)
        r = meg_indexed_pwrite(w, meg_indexed_reserve(w, (int32_t)n), tokens, n, e);
    free(tokens);
    return r;
}
