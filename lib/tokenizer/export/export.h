/*
 * export.h - convert the files of a tokenizer to tokenizer.json, tokenizer_config.json and special_tokens_map.json,
 * which Hugging Face's tokenizers and transformers load.  NullTokenizer cannot be converted.
 */
#pragma once
#include "tokenizer/tokenizer.h"

/* The result of meg_tok_export: the texts of the files.  It starts as { 0 }. */
struct meg_tok_export_files {
    struct meg_str tokenizer; /* .s is NULL if the conversion failed or the tokenizer was read from tokenizer.json */
    struct meg_str config, special_map;
    int32_t eod, bos; /* ids of the end-of-document and the beginning-of-text token, or -1 */
    /*
     * --tokenizer-model must not be copied as tokenizer.model, since other programs expect a SentencePiece BPE model in
     * a file of this name; see meg_tok_export
     */
    bool is_not_spm_bpe;
};

/*
 * meg_tok_export - convert the tokenizer that c describes
 * The exported tokenizer encodes a text to the same ids, with two exceptions:
 * - Hugging Face's libraries parse special tokens that occur in the text.
 * - Hugging Face's libraries differ from SentencePiece; export/spm.c lists the differences.
 * The member MEG_TOK_EXPORT_KEY of config contains the tokenizer options of c without paths, as lines of a
 * configuration file.  Returns MEG_EUSAGE, with the reason, if tokenizer.json cannot represent the tokenizer.  In this
 * case, out->config and out->special_map are still set, except for NullTokenizer, because without a
 * tokenizer_config.json, transformers would choose a tokenizer class by the model type.  Otherwise fails as
 * meg_tokenizer_open does.
 * out->is_not_spm_bpe is set to true if --tokenizer-model is a unigram model or a tiktoken file.  It is also set to
 * true if the conversion fails, except if the tokenizer is a NullTokenizer or cannot be opened.
 */
#define MEG_TOK_EXPORT_KEY "meg_tokenizer"
int meg_tok_export(struct meg_tok_export_files *out, const struct meg_tok_conf *c, struct meg_err *e);
void meg_tok_export_free(struct meg_tok_export_files *x);
