/* batch.h - a micro-batch of token sequences, from the dataset to the device. */
#ifndef MEG_DATA_BATCH_H
#define MEG_DATA_BATCH_H

#include <stdint.h>

#include "base/decls.h"

MEG_BEGIN_DECLS

/*
 * A micro-batch of b sequences, s tokens each, in host memory.  Arrays are [s,b]: token t of sequence i is element
 * t * b + i.  With context parallelism s counts the tokens of this rank alone.
 * The loader fills every field; a batch that a caller makes over its own arrays may leave out what is marked optional.
 */
struct meg_batch {
    int64_t s, b;
    int32_t *tokens;       /* ids in [0, vocabulary); padding is 0 */
    int32_t *labels;       /* the token after each; optional where no loss is computed */
    int32_t *position_ids; /* 0..s-1 of the full sequence; with reset_position_ids from 0 again after each eod */
    int32_t *doc_start;    /* first key each query may attend to, besides causality: 0, or with reset_attention_mask
                              the token after the last eod before it; optional: 0 */
    float *loss_mask;     /* 1, or 0 where the label is padding or, with eod_mask_loss, the token is eod; optional: 1 */
    int64_t *sample_id;   /* [b] number of the sample in the run, equal under every layout: the key of its dropout
                              masks; optional: no dropout */
    int64_t num_unmasked; /* tokens whose loss counts, over all context-parallel ranks; read by the training step */
};

/* Allocate all arrays of a batch of b sequences, s tokens each; the values are undefined.  Free with meg_batch_free. */
void meg_batch_alloc(struct meg_batch *x, int64_t s, int64_t b);
/* Free the arrays that meg_batch_alloc allocated and zero *x; a zeroed batch is accepted. */
void meg_batch_free(struct meg_batch *x);

MEG_END_DECLS

#endif
