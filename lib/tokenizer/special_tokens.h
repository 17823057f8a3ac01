/*
 * special_tokens.h - special tokens in text: an id wherever one of them is spelled, and what another
 * tokenizer makes of the text between them.
 */
#ifndef MEG_TOKENIZER_SPECIAL_TOKENS_H
#define MEG_TOKENIZER_SPECIAL_TOKENS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/trie.h"
#include "tokenizer/tokenizer.h"

/* Starts as { 0 }, in which nothing is found; once built it is only read, by any number of threads. */
struct meg_special_tokens {
    struct meg_trie trie;    /* to the position in the list */
    bool is_first_byte[256]; /* the byte begins one of them */
    int32_t *id;             /* [n] */
    int64_t *nbytes;         /* [n] */
};

/*
 * meg_special_tokens_build - the n tokens of key, value being the id.  Where several begin at one byte the
 * first of the list is taken.  The keys come back changed.  MEG_EFORMAT as meg_trie_build.
 */
int meg_special_tokens_build(struct meg_special_tokens *s, struct meg_trie_key *key, int64_t n, struct meg_err *e);
void meg_special_tokens_free(struct meg_special_tokens *s);

/* Append the ids of text [n], well-formed UTF-8: encode_ordinary(ctx, ...) encodes each stretch between special tokens. */
typedef int (*meg_encode_ordinary_fn)(void *ctx, const char *text, int64_t n, struct meg_ids *out,
                                      const struct meg_id_sink *sink, struct meg_err *e);
int meg_special_tokens_encode(const struct meg_special_tokens *s, const char *text, int64_t n, struct meg_ids *out,
                              const struct meg_id_sink *sink, meg_encode_ordinary_fn encode_ordinary, void *ctx,
                              struct meg_err *e);

#endif
