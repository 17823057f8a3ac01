/* masked_vocab.h - the vocabulary data for masking, taken from a tokenizer. */
#pragma once
#include "data/masked/bert_t5_sample.h"
#include "tokenizer/tokenizer.h"

/*
 * Fill *v from the special ids and the tokens of t, except ids that the model does not have: those from num_ids, its
 * vocabulary size, on.  A token that begins with "##" continues a word (WordPiece).  An
 * id that the tokenizer or the model does not have is -1.  The sentinels are the tokens <extra_id_0>, <extra_id_1>,
 * ..., up to the first number without a token.  `random_ids` is NULL.  Free with meg_masked_vocab_free.
 */
void meg_masked_vocab_make(struct meg_masked_vocab *v, const struct meg_tokenizer *t, int64_t num_ids);
void meg_masked_vocab_free(struct meg_masked_vocab *v); /* accepts a zeroed *v */
