/* batch.c - a micro-batch of token sequences in host memory. */
#include "data/batch.h"
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"

#define FIELD(name, dim)                                                                                               \
    {                                                                                                                  \
        offsetof(struct meg_batch, name), sizeof *((struct meg_batch *)0)->name, dim                                   \
    }
const struct meg_batch_field_info meg_batch_fields[MEG_BATCH_NUM_FIELDS] = {
    [MEG_BATCH_TOKENS] = FIELD(tokens, MEG_BATCH_PER_TOKEN),
    [MEG_BATCH_LABELS] = FIELD(labels, MEG_BATCH_PER_TOKEN),
    [MEG_BATCH_POSITION_IDS] = FIELD(position_ids, MEG_BATCH_PER_TOKEN),
    [MEG_BATCH_DOC_START] = FIELD(doc_start, MEG_BATCH_PER_TOKEN),
    [MEG_BATCH_LOSS_MASK] = FIELD(loss_mask, MEG_BATCH_PER_TOKEN),
    [MEG_BATCH_SAMPLE_ID] = FIELD(sample_id, MEG_BATCH_PER_SEQUENCE),
    [MEG_BATCH_TOKEN_TYPES] = FIELD(token_types, MEG_BATCH_PER_TOKEN),
    [MEG_BATCH_KEY_LENGTH] = FIELD(key_length, MEG_BATCH_PER_SEQUENCE),
    [MEG_BATCH_SENTENCE_ORDER] = FIELD(sentence_order, MEG_BATCH_PER_SEQUENCE),
    [MEG_BATCH_ENC_TOKENS] = FIELD(enc_tokens, MEG_BATCH_PER_ENC_TOKEN),
    [MEG_BATCH_ENC_POSITION_IDS] = FIELD(enc_position_ids, MEG_BATCH_PER_ENC_TOKEN),
    [MEG_BATCH_ENC_KEY_LENGTH] = FIELD(enc_key_length, MEG_BATCH_PER_SEQUENCE),
};

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

void meg_batch_alloc(struct meg_batch *x, int64_t s, int64_t s_enc, int64_t b, unsigned fields,
                     const struct meg_batch_memory *pinned)
{
    memset(x, 0, sizeof *x);
    x->s = s;
    x->s_enc = s_enc;
    x->b = b;
    x->is_pinned = pinned;
    x->release = pinned ? pinned->release : free;
    for (int f = 0; f < MEG_BATCH_NUM_FIELDS; f++)
        if (fields & 1u << f)
            *meg_batch_array(x, f) = alloc_array((size_t)meg_batch_numel(x, f), meg_batch_fields[f].size, pinned);
}

unsigned meg_batch_present(const struct meg_batch *x)
{
    struct meg_batch batch = *x;
    unsigned fields = 0;

    for (int f = 0; f < MEG_BATCH_NUM_FIELDS; f++)
        if (*meg_batch_array(&batch, f))
            fields |= 1u << f;
    return fields;
}

void meg_batch_free(struct meg_batch *x)
{
    for (int f = 0; f < MEG_BATCH_NUM_FIELDS; f++)
        if (*meg_batch_array(x, f))
            x->release(*meg_batch_array(x, f));
    memset(x, 0, sizeof *x);
}
