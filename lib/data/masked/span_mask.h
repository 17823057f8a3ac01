/* span_mask.h - mask BERT and T5 samples: draw random spans of words until enough tokens are masked. */
#pragma once
#include <stdint.h>
#include "data/masked/bert_t5_sample.h"
#include "data/mt19937.h"

/* Masked spans, in the order in which they were drawn.  Span k is position[first[k]] .. position[first[k + 1] - 1]. */
struct meg_masked_spans {
    int64_t n, nspan;
    int32_t *position; /* [n] masked token positions */
    int32_t *original; /* [n] ids at these positions before masking */
    int64_t *first;    /* [nspan+1] index into `position` of the first token of each span; then n */
};
void meg_masked_spans_free(struct meg_masked_spans *m);

/*
 * meg_mask_tokens - mask tokens of a sample, except CLS and SEP
 *   m       out  masked spans; the caller frees m with meg_masked_spans_free
 *   tokens  [n]  in/out  ids of the vocabulary v
 *   target  target length of the sample in tokens
 * BERT replaces a masked token by MASK or a random id, or keeps the token; T5 replaces each masked token by MASK.
 */
void meg_mask_tokens(struct meg_masked_spans *m, int32_t *tokens, int64_t n, int64_t target,
                     const struct meg_masked_conf *c, const struct meg_masked_vocab *v, struct meg_mt19937 *g);
