/*
 * export.h - tokenizer.json, tokenizer_config.json and special_tokens_map.json, which Hugging Face's
 * tokenizers and transformers load, made from the files of any other tokenizer type.
 */
#ifndef MEG_TOKENIZER_EXPORT_EXPORT_H
#define MEG_TOKENIZER_EXPORT_EXPORT_H

#include "tokenizer/tokenizer.h"

/* The text of each file.  Starts as { 0 }. */
struct meg_tok_export_files {
    struct meg_str tokenizer; /* s NULL: HuggingFaceTokenizer and PretrainedFromHF have their own */
    struct meg_str config, map;
    int32_t eod, bos;  /* ids that end a document and begin a text, or -1 */
    bool is_own_model; /* --tokenizer-model is not SentencePiece's BPE, which others take a tokenizer.model for */
};

/*
 * meg_tok_export - write the tokenizer that c describes as these files
 * The ids of a text are those of c, except where the text spells a special token: Hugging Face's programs
 * take it for that token.  config has the member MEG_TOK_EXPORT_KEY: the tokenizer options of c, as lines of
 * a configuration file, without the paths.
 * MEG_EUSAGE, with the reason, for a tokenizer that tokenizer.json cannot express: tokenizer is then empty, and the
 * other two do not let transformers open the folder in another way; else as meg_tokenizer_open.
 */
#define MEG_TOK_EXPORT_KEY "meg_tokenizer"
int meg_tok_export(struct meg_tok_export_files *out, const struct meg_tok_conf *c, struct meg_err *e);
void meg_tok_export_free(struct meg_tok_export_files *x);

#endif
