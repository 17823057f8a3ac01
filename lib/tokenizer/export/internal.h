/* internal.h - the parts of a tokenizer.json being written, and one function for each source of them. */
#ifndef MEG_TOKENIZER_EXPORT_INTERNAL_H
#define MEG_TOKENIZER_EXPORT_INTERNAL_H

#include <jansson.h>

#include "tokenizer/internal.h"
#include "tokenizer/pretokenize/pretokenize.h"

/* A token that is found in text as it is spelled. */
struct meg_export_added_token {
    struct meg_str text; /* s NULL: it is not one */
    bool is_normalized;  /* found in normalised text, and not special */
};

struct meg_export_builder {
    const struct meg_tok_conf *conf;
    struct meg_tokenizer *tok;
    json_t *normalizer, *pre_tokenizer, *decoder, *model; /* NULL: none */
    struct meg_export_added_token *added;                 /* [vocab_size] by id */
    int32_t unk;                                          /* id of the unknown token, or -1 */
    bool has_no_prefix; /* a SentencePiece model that puts no blank in front of a text */
    bool is_own_model;  /* as in struct meg_tok_export_files */
};

/* Add the special token of an id; nothing where the id is negative or is added already. */
void meg_export_add_special(struct meg_export_builder *x, int32_t id, const char *s, size_t n);
/* Add the tokens of all roles, spelled as their bytes. */
void meg_export_add_all_special(struct meg_export_builder *x);

/* {"type": TYPE, ...}: the other members are those of json_pack's format. */
json_t *meg_export_component(const char *type, const char *format, ...);
/* A BPE model over the characters that stand for bytes. */
json_t *meg_export_byte_level_bpe(json_t *vocab, json_t *merges, bool ignore_merges);
/* ["left", "right"] of a merge. */
json_t *meg_export_merge(const char *left, size_t nleft, const char *right, size_t nright);
/* The pre-tokeniser of a known split, then bytes; and the decoder of bytes. */
void meg_export_byte_level(struct meg_export_builder *x, enum meg_pretok split);

/* Fill the parts, the added tokens and unk.  MEG_EUSAGE for what tokenizer.json cannot express. */
int meg_export_gpt2(struct meg_export_builder *x, struct meg_err *e);
int meg_export_tiktoken(struct meg_export_builder *x, struct meg_err *e);
int meg_export_wordpiece(struct meg_export_builder *x, struct meg_err *e);
int meg_export_spm(struct meg_export_builder *x, struct meg_err *e);
int meg_export_hf(struct meg_export_builder *x, struct meg_err *e);

#endif
