/*
 * tiktoken_files.h - ranked tokens, in one of two spellings:
 *   text  lines "BASE64 RANK", ranks 0, 1, 2, ...; ids are the ranks, special tokens follow
 *   JSON  [{"rank": 0, "token_bytes": BASE64, "token_str": TEXT or null}, ...], the single bytes in order
 *         first; special tokens have the first ids, all others are their rank behind them
 */
#ifndef MEG_TOKENIZER_BPE_TIKTOKEN_FILES_H
#define MEG_TOKENIZER_BPE_TIKTOKEN_FILES_H

#include "tokenizer/bpe/byte_level.h"
#include "tokenizer/special_tokens.h"
#include "tokenizer/tokenizer.h"

struct meg_tiktoken_files {
    struct meg_strtab tokens; /* bytes by id */
    struct meg_tok_special_ids special_ids;
    struct meg_bytebpe vocab;
    struct meg_special_tokens specials; /* found in text, of release 0.15 and later */
};

/*
 * meg_tiktoken_files_load - read c->tokenizer_model and take the --tiktoken options and --vocab-size.
 * MEG_EFORMAT, with line or element, for what is no base64, a rank out of order, a token that is empty,
 * longer than 4096 bytes or stands there twice, a byte that is no token; MEG_EUSAGE where the special tokens
 * lack one that is needed, stand there twice, are too many or are tokens already, or the file is too small.
 */
int meg_tiktoken_files_load(struct meg_tiktoken_files **out, const struct meg_tok_conf *c, struct meg_err *e);
void meg_tiktoken_files_free(struct meg_tiktoken_files *f); /* accepts NULL */

#endif
