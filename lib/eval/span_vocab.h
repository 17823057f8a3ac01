/*
 * span_vocab.h - the tokens that mark the spans of a text for a T5 (Raffel et al. 2020).  In the input of the encoder,
 * the sentinel <extra_id_k> represents span k, counted from 0.  The decoder begins with BOS, and predicts each span
 * after its sentinel.
 */
#pragma once
#include "infer/model_load.h"

struct meg_span_vocab {
    int32_t *sentinel; /* [nsentinel] ids of <extra_id_0>, <extra_id_1>, ... */
    int64_t nsentinel;
    int32_t bos, eos;
    int32_t mask;     /* the mask token, which represents a span, too; -1: none */
    bool adds_eos;    /* EOS ends a text */
    bool splits_text; /* the tokenizer does not encode the sentinels in a text as tokens */
};

/*
 * meg_span_vocab_make - list the tokens of a T5 and its tokenizer
 * A SentencePiece model from Hugging Face has no sentinels.  The sentinels are then those that T5Tokenizer adds:
 * <extra_id_99> to <extra_id_0>, in this order, after the ids of the model.  T5Tokenizer also adds EOS to a text.
 * Returns MEG_EUSAGE if there are no sentinels, or BOS or EOS is unknown.  Free with meg_span_vocab_free.
 */
int meg_span_vocab_make(struct meg_span_vocab *v, const struct meg_loaded_model *m, struct meg_err *e);
void meg_span_vocab_free(struct meg_span_vocab *v); /* accepts a zeroed *v */

/* Return the number of a sentinel, or -1 if id is not a sentinel. */
int64_t meg_span_vocab_find(const struct meg_span_vocab *v, int32_t id);

/*
 * Number the masks and sentinels of a line from 0 on, and replace mask k by <extra_id_k>.  Set *nspans to the total
 * number of masks and sentinels.  Returns MEG_EFORMAT if sentinel k is not <extra_id_k>, or if there are too few
 * sentinels.
 */
int meg_span_vocab_number(const struct meg_span_vocab *v, struct meg_ids *ids, int64_t *nspans, struct meg_err *e);
