/*
 * gpt2_files.h - vocab.json and merges.txt.  The vocabulary is one JSON object, token to id; the
 * merges are lines "left right" behind a first line that says the version.  Tokens are spelled in
 * the characters of tokenizer/bpe/byte_alphabet.h.
 */
#ifndef MEG_TOKENIZER_BPE_GPT2_FILES_H
#define MEG_TOKENIZER_BPE_GPT2_FILES_H

#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"
#include "tokenizer/bpe/byte_level.h"

struct meg_gpt2_files {
    int64_t n;            /* tokens; ids are 0 .. n-1 */
    struct meg_str bytes; /* of all tokens, by id */
    int64_t *at;          /* [n+1] where each begins */
    int32_t eod;          /* <|endoftext|> */
    struct meg_bytebpe vocab;
};

/*
 * meg_gpt2_files_load - read both files and hold one against the other.
 * MEG_EFORMAT, naming tokens and lines, when ids are not 0 .. n-1 once each, <|endoftext|> is
 * missing, a line of the merges is not a pair, or a merge has a part or a result that is not in
 * the vocabulary.  As in Megatron-LM the first line of the merges and what follows its last
 * newline are not read; where that loses a merge there is a warning.
 */
int meg_gpt2_files_load(struct meg_gpt2_files **out, const char *vocab_path, const char *merge_path, struct meg_err *e);
void meg_gpt2_files_free(struct meg_gpt2_files *f); /* accepts NULL */

#endif
