/*
 * vocab_file.h - read BERT's vocab.txt, which has one token per line.  Whitespace around a token is ignored.  The id of
 * a token is its line number, counted from 0; of several lines with the same token, it is that of the last one, as in
 * Megatron-LM and transformers.  An empty line has a number, too.  Lines end with \n, \r or \r\n: other line separators
 * of Unicode are whitespace.  If [BOS] or [EOS] is missing, it is added after the last line.  The extra ids,
 * <extra_id_0>, <extra_id_1> and so on, are then added, except those that the file contains.
 */
#pragma once
#include "tokenizer/bert/wordpiece.h"
#include "tokenizer/tokenizer.h"

struct meg_bert_files {
    struct meg_strtab tokens;       /* tokens by id, including added tokens; not indexed, because tokens may be equal */
    struct meg_wordpiece wordpiece; /* tokens of the file; added tokens are not matched in text */
    struct meg_tok_special_ids special_ids;
    int64_t num_appended;      /* tokens that the file does not contain: [BOS], [EOS] and extra ids */
    int64_t first_unused_line; /* the first line, counted from 1, that is empty or has an earlier token; 0: none */
};

/*
 * meg_bert_files_load - read a vocabulary and add nextra extra ids
 * Returns MEG_EFORMAT
 * - with the location in the message, for invalid UTF-8;
 * - for a zero byte;
 * - if [CLS], [SEP], [PAD], [MASK] or [UNK] is missing.
 * Otherwise fails as meg_tok_read_file and meg_wordpiece_build do.
 */
int meg_bert_files_load(struct meg_bert_files **out, const char *path, int64_t nextra, struct meg_err *e);
void meg_bert_files_free(void *files); /* accepts NULL */
