/*
 * special_tokens.h - parse special tokens in text: each occurrence becomes its id, and an encoder of ordinary text
 * encodes the text between them.
 */
#ifndef MEG_TOKENIZER_SPECIAL_TOKENS_H
#define MEG_TOKENIZER_SPECIAL_TOKENS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/trie.h"
#include "tokenizer/tokenizer.h"

MEG_BEGIN_DECLS

/* Starts as { 0 }, the empty set.  Once built, any number of threads may use it. */
struct meg_special_tokens {
    struct meg_trie trie;    /* maps a token to its index in the list */
    bool is_first_byte[256]; /* some token begins with the byte */
    int32_t *id;             /* [n] */
    int64_t *nbytes;         /* [n] */
};

/*
 * meg_special_tokens_build - build the set from the n tokens of key, whose value is the id
 * If several tokens match at one position, the first of the list is taken.  Overwrites key[].value.  MEG_EFORMAT as
 * meg_trie_build.
 */
int meg_special_tokens_build(struct meg_special_tokens *s, struct meg_trie_key *key, int64_t n, struct meg_err *e);
void meg_special_tokens_free(struct meg_special_tokens *s);

/*
 * Append the ids of text [n], well-formed UTF-8.  encode_ordinary(ctx, ...) encodes each part between special tokens.
 * Fails as it and the sink do.
 */
typedef int (*meg_encode_ordinary_fn)(void *ctx, const char *text, int64_t n, struct meg_ids *out,
                                      const struct meg_id_sink *sink, struct meg_err *e);
int meg_special_tokens_encode(const struct meg_special_tokens *s, const char *text, int64_t n, struct meg_ids *out,
                              const struct meg_id_sink *sink, meg_encode_ordinary_fn encode_ordinary, void *ctx,
                              struct meg_err *e);

MEG_END_DECLS

#endif
