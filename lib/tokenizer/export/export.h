/*
 * export.h - convert the files of any tokenizer type to tokenizer.json, tokenizer_config.json and
 * special_tokens_map.json, which Hugging Face's tokenizers and transformers load.
 */
#ifndef MEG_TOKENIZER_EXPORT_EXPORT_H
#define MEG_TOKENIZER_EXPORT_EXPORT_H

#include "base/decls.h"
#include "tokenizer/tokenizer.h"

MEG_BEGIN_DECLS

/* The text of each file.  It starts as { 0 }. */
struct meg_tok_export_files {
    struct meg_str tokenizer; /* s NULL: not written, since HuggingFaceTokenizer and PretrainedFromHF have the file */
    struct meg_str config, special_map;
    int32_t eod, bos;    /* ids of the end-of-document and the beginning-of-text token, or -1 */
    bool is_not_spm_bpe; /* --tokenizer-model is not a SentencePiece BPE model */
};

/*
 * meg_tok_export - convert the tokenizer that c describes
 * The exported tokenizer encodes a text to the same ids, with two exceptions: Hugging Face's libraries parse special
 * tokens that occur in the text, and they differ from SentencePiece in the points that export/spm.c lists.  The member
 * MEG_TOK_EXPORT_KEY of config has the tokenizer options of c without paths, as lines of a configuration file.  Returns
 * MEG_EUSAGE, with the reason, if tokenizer.json cannot represent the tokenizer.  Then tokenizer is empty, and the
 * other two files prevent transformers from loading the directory in another way.  Otherwise fails as
 * meg_tokenizer_open does.
 */
#define MEG_TOK_EXPORT_KEY "meg_tokenizer"
int meg_tok_export(struct meg_tok_export_files *out, const struct meg_tok_conf *c, struct meg_err *e);
void meg_tok_export_free(struct meg_tok_export_files *x);

MEG_END_DECLS

#endif
