#include "data/batch.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

static void *alloc_array(size_t n, size_t size, const struct meg_batch_memory *pinned)
{
    void *p = pinned ? pinned->alloc(n * size) : meg_realloc_array(NULL, n, size);

    if (!p)
        meg_die(MEG_EFAIL,
                "out of memory: cannot allocate %zu bytes of pinned memory; use a smaller "
                "--micro-batch-size",
                n * size);
    return p;
}

void meg_batch_alloc(struct meg_batch *x, int64_t s, int64_t b, bool has_doc_start,
                     const struct meg_batch_memory *pinned)
{
    const size_t n = (size_t)(s * b);

    memset(x, 0, sizeof *x);
    x->s = s;
    x->b = b;
    x->is_pinned = pinned;
    x->release = pinned ? pinned->release : free;
    x->tokens = alloc_array(n, sizeof *x->tokens, pinned);
    x->labels = alloc_array(n, sizeof *x->labels, pinned);
    x->position_ids = alloc_array(n, sizeof *x->position_ids, pinned);
    if (has_doc_start)
        x->doc_start = alloc_array(n, sizeof *x->doc_start, pinned);
    x->loss_mask = alloc_array(n, sizeof *x->loss_mask, pinned);
    x->sample_id = alloc_array((size_t)b, sizeof *x->sample_id, pinned);
}

void meg_batch_free(struct meg_batch *x)
{
    void *const array[] = { x->tokens, x->labels, x->position_ids, x->doc_start, x->loss_mask, x->sample_id };

    for (size_t i = 0; i < sizeof array / sizeof *array; i++)
        if (array[i])
            x->release(array[i]);
    memset(x, 0, sizeof *x);
}
