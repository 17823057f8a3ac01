/* corpus.h - tokenize plain text or JSON lines into one sequence of tokens, whose perplexity is computed. */
#ifndef MEG_EVAL_CORPUS_H
#define MEG_EVAL_CORPUS_H
#include "io/block_reader.h"
#include "tokenizer/tokenizer.h"

MEG_BEGIN_DECLS

/*
 * meg_tokenize_corpus - append the tokens of an input to ids
 *   documents  out  number of documents
 * If the first byte that is not whitespace is '{', the input is JSON lines.  Each line that is not blank is a document:
 * the tokens of its "text" or its "ids", followed by the tokenizer's end-of-document id (if the tokenizer has one and
 * the document is not empty), as meg-preprocess --append-eod writes it.  Any other input is one plain text without
 * end-of-document id.  Returns the errors of meg_prompt_read and meg_block_reader_next.
 */
int meg_tokenize_corpus(struct meg_block_reader *in, struct meg_tokenizer *tok, int64_t vocab_size, struct meg_ids *ids,
                        int64_t *documents, struct meg_err *e);

MEG_END_DECLS
#endif
