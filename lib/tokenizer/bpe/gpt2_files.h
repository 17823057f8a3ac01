/*
 * gpt2_files.h - read GPT-2's vocab.json and merges.txt.  The vocabulary is a JSON object that maps tokens to ids; the
 * merges are lines "left right" after a first line with the version.  Tokens are spelled in the byte alphabet
 * (tokenizer/bpe/byte_alphabet.h).
 */
#ifndef MEG_TOKENIZER_BPE_GPT2_FILES_H
#define MEG_TOKENIZER_BPE_GPT2_FILES_H
#include "base/decls.h"
#include "tokenizer/bpe/byte_level_tokenizer.h"

MEG_BEGIN_DECLS

/*
 * meg_gpt2_files_load - read both files and check them against each other
 * Returns MEG_EFORMAT if a file is malformed or the ids are not a permutation of 0 .. n-1.  Also returns MEG_EFORMAT if
 * <|endoftext|>, a token of a merge or the result of a merge is not in the vocabulary.  As in Megatron-LM, the first
 * line of merges.txt and the text after its last newline are ignored.  If the ignored text may contain a merge, a
 * warning is printed.
 */
int meg_gpt2_files_load(struct meg_bytebpe_files **out, const char *vocab_path, const char *merge_path,
                        struct meg_err *e);

MEG_END_DECLS

#endif
