/*
 * tiktoken_files.h - read tiktoken's ranked tokens, in one of two formats:
 *   text  lines "BASE64 RANK" in any order; the id of a ranked token is its rank, and the special tokens have the ids
 *         that are not ranks and then those after the last rank
 *   JSON  [{"rank": 0, "token_bytes": BASE64, "token_str": TEXT or null}, ...], beginning with the 256 bytes in order;
 *         the first ids are special tokens, and the ranked tokens follow in order of rank
 */
#ifndef MEG_TOKENIZER_BPE_TIKTOKEN_FILES_H
#define MEG_TOKENIZER_BPE_TIKTOKEN_FILES_H
#include "base/decls.h"
#include "tokenizer/bpe/byte_level_tokenizer.h"

MEG_BEGIN_DECLS

/*
 * meg_tiktoken_files_load - read c->tokenizer_model and apply the --tiktoken options and --vocab-size
 * Returns MEG_EFORMAT if the file is malformed, or a rank is duplicate or, in JSON, out of order.  Also returns
 * MEG_EFORMAT if a token is empty, longer than 4096 bytes or, in JSON, duplicate, or if one of the 256 single bytes is
 * not a token.  Returns MEG_EUSAGE if
 * an option is invalid or does not fit the file.  For example, a required special token may be missing, or a special
 * token may equal another token.
 */
int meg_tiktoken_files_load(struct meg_bytebpe_files **out, const struct meg_tok_conf *c, struct meg_err *e);

MEG_END_DECLS

#endif
