/*
 * export.h - convert the files of any tokenizer type to tokenizer.json, tokenizer_config.json and
 * special_tokens_map.json, which Hugging Face's tokenizers and transformers load.
 */
#ifndef MEG_TOKENIZER_EXPORT_EXPORT_H
#define MEG_TOKENIZER_EXPORT_EXPORT_H

#include "base/decls.h"
#include "tokenizer/tokenizer.h"

MEG_BEGIN_DECLS

/* The text of each file.  Starts as { 0 }. */
struct meg_tok_export_files {
    struct meg_str tokenizer; /* s NULL: HuggingFaceTokenizer and PretrainedFromHF, which have one */
    struct meg_str config, special_map;
    int32_t eod, bos; /* ids of the end-of-document and the beginning-of-text token, or -1 */
    bool
        is_not_spm_bpe; /* --tokenizer-model is not a SentencePiece BPE model, as which others load a tokenizer.model */
};

/*
 * meg_tok_export - convert the tokenizer that c describes
 * The exported tokenizer encodes a text to the same ids, except where the text contains a special token: Hugging
 * Face's programs match it.  config has the member MEG_TOK_EXPORT_KEY: the tokenizer options of c without paths, as
 * lines of a configuration file.
 * MEG_EUSAGE, with the reason, if tokenizer.json cannot express the tokenizer: then tokenizer is empty, and the other
 * two files keep transformers from loading the directory in another way.  Else fails as meg_tokenizer_open.
 */
#define MEG_TOK_EXPORT_KEY "meg_tokenizer"
int meg_tok_export(struct meg_tok_export_files *out, const struct meg_tok_conf *c, struct meg_err *e);
void meg_tok_export_free(struct meg_tok_export_files *x);

MEG_END_DECLS

#endif
