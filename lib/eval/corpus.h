/* corpus.h - tokenize plain text or JSON lines into one token sequence, the input of a perplexity evaluation. */
#pragma once
#include "io/block_reader.h"
#include "tokenizer/tokenizer.h"

/*
 * meg_tokenize_corpus - append the tokens of an input to ids
 *   tok         NULL: the input must contain ids
 *   vocab_size  exclusive upper bound of the ids in the input
 *   documents   out  number of documents
 * If the first byte that is not whitespace is '{', the input is JSON lines; an array of objects is refused.  Each line
 * that is not blank is a document: the tokens of "text", or the ids in "ids".  A document that is not empty is followed
 * by the end-of-document id, if the tokenizer has one, as with meg-preprocess --append-eod.  Any other input is one
 * plain text without an end-of-document id.  Returns the errors of meg_prompt_read and meg_block_reader_next.
 */
int meg_tokenize_corpus(struct meg_block_reader *in, struct meg_tokenizer *tok, int64_t vocab_size, struct meg_ids *ids,
                        int64_t *documents, struct meg_err *e);
