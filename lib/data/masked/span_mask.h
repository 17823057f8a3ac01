/* Which tokens of a sample are hidden: spans of whole words, drawn until enough is hidden. */
#ifndef MEG_DATA_MASKED_SPAN_MASK_H
#define MEG_DATA_MASKED_SPAN_MASK_H

#include <stdint.h>

#include "base/mt19937.h"
#include "data/masked/bert_t5_sample.h"

/* Spans in the order they were drawn; span k is positions [first[k], first[k+1]) of position. */
struct meg_masked_spans {
    int64_t n, nspan;
    int32_t *position, *original; /* [n] */
    int64_t *first;               /* [nspan+1] */
};
void meg_masked_spans_free(struct meg_masked_spans *m);

/*
 * meg_mask_tokens - hide some of the tokens of a sample
 *   tokens  [n]  in/out  ids of v
 *   target  length the sample was gathered for
 *   kind    what stands in place of a token: BERT's choice of three, or always MASK
 */
void meg_mask_tokens(struct meg_masked_spans *m, int32_t *tokens, int64_t n, int64_t target, enum meg_masked_type type,
                     const struct meg_mask_conf *c, const struct meg_masked_vocab *v, struct meg_mt19937 *g);

#endif
