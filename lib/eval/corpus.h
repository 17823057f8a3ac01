/*
 * corpus.h - a text as the one sequence of tokens that a perplexity is taken of.
 */
#ifndef MEG_EVAL_CORPUS_H
#define MEG_EVAL_CORPUS_H
#include "io/block_reader.h"
#include "tokenizer/tokenizer.h"

MEG_BEGIN_DECLS

/*
 * meg_tokenize_corpus - append the tokens of all of in to ids
 * JSON lines (the first byte is '{'): those of each line's "text" or "ids", and eod behind each that
 * is not empty, where the tokenizer has one, as meg-preprocess --append-eod lays them out.  Anything else is one text
 * as it stands, and takes no eod.  *documents is their number.  Errors as meg_prompt_read.
 */
int meg_tokenize_corpus(struct meg_block_reader *in, struct meg_tokenizer *tok, int64_t vocab_size, struct meg_ids *ids,
                        int64_t *documents, struct meg_err *e);

MEG_END_DECLS
#endif
