/*
 * binary_head.h - BERT's pooler and binary head (Devlin et al. 2019), for sentence-order prediction: from x0, the final
 * hidden state of a sequence's first token,
 *   logits [b,2] = binary(tanh(dense(x0)))
 * and the cross-entropy of each sequence.  The weights are replicated on tensor-parallel ranks.
 */
#pragma once
#include "nn/head.h"

struct meg_binary_head_conf {
    int64_t h;  /* width of the residual stream */
    double std; /* of the initial weights */
};

/* The parameters are pooler.dense and binary_head; the labels are sentence_order of the batch. */
extern const struct meg_head_type meg_binary_head;
