/*
 * tiktoken_files.h - read tiktoken's ranked tokens, in one of two formats:
 *   text  lines "BASE64 RANK" with ranks 0, 1, 2, ...; the ids are the ranks, followed by special tokens
 *   JSON  [{"rank": 0, "token_bytes": BASE64, "token_str": TEXT or null}, ...], beginning with the 256 bytes in order;
 *         the first ids are special tokens, and the ranked tokens follow in order of rank
 */
#ifndef MEG_TOKENIZER_BPE_TIKTOKEN_FILES_H
#define MEG_TOKENIZER_BPE_TIKTOKEN_FILES_H

#include "base/decls.h"
#include "tokenizer/bpe/byte_level.h"
#include "tokenizer/special_tokens.h"
#include "tokenizer/tokenizer.h"

MEG_BEGIN_DECLS

struct meg_tiktoken_files {
    struct meg_strtab tokens; /* bytes of each token by id */
    struct meg_tok_special_ids special_ids;
    struct meg_bytebpe vocab;
    struct meg_special_tokens special_tokens; /* special tokens that are parsed in text; empty before release 0.15 */
};

/*
 * meg_tiktoken_files_load - read c->tokenizer_model and apply the --tiktoken options and --vocab-size
 * Returns MEG_EFORMAT, with the line or array element, for invalid base64, a rank out of order, a token that is empty,
 * longer than 4096 bytes or a duplicate, or a byte that is not a token.  Returns MEG_EUSAGE if a required special token
 * is missing, if special tokens are duplicates, too many or equal to other tokens, or if the file has fewer tokens than
 * --vocab-size requires.
 */
int meg_tiktoken_files_load(struct meg_tiktoken_files **out, const struct meg_tok_conf *c, struct meg_err *e);
void meg_tiktoken_files_free(struct meg_tiktoken_files *f); /* accepts NULL */

MEG_END_DECLS

#endif
