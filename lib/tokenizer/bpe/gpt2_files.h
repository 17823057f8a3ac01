/*
 * gpt2_files.h - read GPT-2's vocab.json and merges.txt.  The vocabulary is a JSON object that maps tokens to ids; the
 * merges are lines "left right" after a first line with the version.  Tokens are spelled in the byte alphabet
 * (tokenizer/bpe/byte_alphabet.h).
 */
#ifndef MEG_TOKENIZER_BPE_GPT2_FILES_H
#define MEG_TOKENIZER_BPE_GPT2_FILES_H
#include <stdint.h>
#include "base/decls.h"
#include "base/err.h"
#include "base/mem.h"
#include "tokenizer/bpe/byte_level.h"
#include "tokenizer/special_tokens.h"

MEG_BEGIN_DECLS

struct meg_gpt2_files {
    int64_t n;            /* number of tokens; ids are 0 .. n-1 */
    struct meg_str bytes; /* bytes of all tokens, concatenated in order of id */
    int64_t *at;          /* [n+1] start of each token in `bytes` */
    int32_t eod;          /* id of <|endoftext|> */
    struct meg_bytebpe vocab;
    struct meg_special_tokens special_tokens; /* tokens parsed in text; empty before --megatron-release 0.15 */
};

/*
 * meg_gpt2_files_load - read both files and check them against each other
 * Returns MEG_EFORMAT if a file is malformed or the ids are not a permutation of 0 .. n-1.  Also returns MEG_EFORMAT if
 * <|endoftext|>, a token of a merge or the result of a merge is not in the vocabulary.  As in Megatron-LM, the first
 * line of merges.txt and the text after its last newline are ignored.  If the ignored text may contain a merge, a
 * warning is printed.
 */
int meg_gpt2_files_load(struct meg_gpt2_files **out, const char *vocab_path, const char *merge_path, struct meg_err *e);
void meg_gpt2_files_free(struct meg_gpt2_files *f); /* accepts NULL */

MEG_END_DECLS

#endif
