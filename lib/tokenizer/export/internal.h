/*
 * internal.h - build a tokenizer.json: the builder, and one function per tokenizer type that sets the components
 * (private to lib/tokenizer/export).
 */
#pragma once
#include <jansson.h>
#include "tokenizer/internal.h"
#include "tokenizer/pretokenize/pretokenize.h"

/* ---- Builder ---- */

/* An entry of added_tokens. */
struct meg_export_added_token {
    struct meg_str text; /* text.s is NULL if this id is not an added token */
    bool is_normalized;  /* the token is matched in normalized text and is not special */
};

struct meg_export_builder {
    const struct meg_tok_conf *conf;
    struct meg_tokenizer *tok;
    json_t *normalizer, *pre_tokenizer, *decoder, *model; /* JSON of each component; NULL: none */
    struct meg_export_added_token *added;                 /* [vocab_size] added tokens by id */
    int32_t unk;                                          /* id of the unknown token, or -1 */
    bool has_no_prefix;                                   /* the SentencePiece model does not set add_dummy_prefix */
    bool is_not_spm_bpe;                                  /* see struct meg_tok_export_files */
};

/* Make id a special token with text s [n], unless id is negative or already an added token. */
void meg_export_add_special(struct meg_export_builder *b, int32_t id, const char *s, size_t n);
/* Make each special id of the tokenizer a special token, with the bytes of the id as the text of the token. */
void meg_export_add_all_special(struct meg_export_builder *b);

/* ---- JSON values; the caller owns the result; the function takes ownership of json_t arguments ---- */

/* Return {"type": TYPE, ...} with the members that `format` specifies as in json_pack. */
json_t *meg_export_component(const char *type, const char *format, ...);
/* Return a BPE model whose tokens are spelled in the byte alphabet (tokenizer/bpe/byte_alphabet.h). */
json_t *meg_export_byte_level_bpe(json_t *vocab, json_t *merges, bool ignore_merges);
/* Return the merge ["left", "right"]. */
json_t *meg_export_merge(const char *left, size_t nleft, const char *right, size_t nright);
/* Return a Replace normalizer that replaces the matches of a regular expression by `content`. */
json_t *meg_export_replace(const char *regex, const char *content);
/* Set the pre-tokenizer to the pattern of pretok followed by ByteLevel, and the decoder to ByteLevel. */
void meg_export_byte_level(struct meg_export_builder *b, enum meg_pretok pretok);

/* ---- Tokenizer types ---- */

/*
 * Set the JSON components, the added tokens and those members after `added` that the tokenizer type requires.
 * meg_export_hf sets added tokens only, since its files need no conversion.  Return MEG_EUSAGE if tokenizer.json cannot
 * represent the tokenizer.
 */
int meg_export_gpt2(struct meg_export_builder *b, struct meg_err *e);
int meg_export_tiktoken(struct meg_export_builder *b, struct meg_err *e);
int meg_export_wordpiece(struct meg_export_builder *b, struct meg_err *e);
int meg_export_spm(struct meg_export_builder *b, struct meg_err *e);
int meg_export_hf(struct meg_export_builder *b, struct meg_err *e);
