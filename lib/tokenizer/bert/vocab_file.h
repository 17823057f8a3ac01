/*
 * vocab_file.h - vocab.txt of BERT: a token a line, blanks around it left out, the id is the number of
 * the line from 0.  [BOS] and [EOS] follow where they are missing, then <extra_id_0>, <extra_id_1>, ...
 */
#ifndef MEG_TOKENIZER_BERT_VOCAB_FILE_H
#define MEG_TOKENIZER_BERT_VOCAB_FILE_H

#include "tokenizer/bert/wordpiece.h"
#include "tokenizer/tokenizer.h"

struct meg_bert_files {
    struct meg_strtab tokens;    /* by id, those of the file and those added */
    struct meg_wordpiece pieces; /* of the file's tokens only: added ones are not found in text */
    struct meg_tok_special_ids roles;
};

/*
 * meg_bert_files_load - read a vocabulary.
 * MEG_EFORMAT, with the line, for invalid UTF-8, an empty line, or a token that stands there twice; and
 * when [CLS], [SEP], [PAD], [MASK] or [UNK] is missing.
 */
int meg_bert_files_load(struct meg_bert_files **out, const char *path, int64_t nextra, struct meg_err *e);
void meg_bert_files_free(struct meg_bert_files *f); /* accepts NULL */

#endif
