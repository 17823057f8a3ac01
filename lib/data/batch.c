#include "data/batch.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

void meg_batch_alloc(struct meg_batch *x, int64_t s, int64_t b, bool has_doc_start)
{
    const size_t n = (size_t)(s * b);

    memset(x, 0, sizeof *x);
    x->s = s;
    x->b = b;
    x->tokens = meg_realloc_array(NULL, n, sizeof *x->tokens);
    x->labels = meg_realloc_array(NULL, n, sizeof *x->labels);
    x->position_ids = meg_realloc_array(NULL, n, sizeof *x->position_ids);
    if (has_doc_start)
        x->doc_start = meg_realloc_array(NULL, n, sizeof *x->doc_start);
    x->loss_mask = meg_realloc_array(NULL, n, sizeof *x->loss_mask);
    x->sample_id = meg_realloc_array(NULL, (size_t)b, sizeof *x->sample_id);
}

void meg_batch_free(struct meg_batch *x)
{
    free(x->tokens);
    free(x->labels);
    free(x->position_ids);
    free(x->doc_start);
    free(x->loss_mask);
    free(x->sample_id);
    memset(x, 0, sizeof *x);
}
