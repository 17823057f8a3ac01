/*
 * special_tokens.h - parse special tokens in text.  Each occurrence of a special token is encoded as its id.  A
 * callback encodes the remaining text.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "tokenizer/tokenizer.h"
#include "tokenizer/trie.h"

/* A set of special tokens.  { 0 } is the empty set.  Any number of threads may use a set that has been built. */
struct meg_special_tokens {
    struct meg_trie trie;    /* maps a token to its index in `id` and `nbytes` */
    bool is_first_byte[256]; /* true if a token begins with the byte */
    int32_t *id;             /* [n] ids of the tokens */
    int64_t *nbytes;         /* [n] lengths of the tokens in bytes */
};

/*
 * meg_special_tokens_build - build a set from a list of n tokens
 *   key  [n]  in: texts and ids (value) of the tokens; key[].value is overwritten
 * If several tokens match at one position of a text, the first one in the list is used.  Fails as meg_trie_build does.
 * The caller frees s with meg_special_tokens_free, even after a failure.
 */
int meg_special_tokens_build(struct meg_special_tokens *s, struct meg_trie_key *key, int64_t n, struct meg_err *e);
void meg_special_tokens_free(struct meg_special_tokens *s);

/* An encoder of text without special tokens.  It must accept empty text. */
struct meg_ordinary_encoder {
    int (*encode)(void *ctx, const char *text, int64_t n, struct meg_ids *out, const struct meg_id_sink *sink,
                  struct meg_err *e);
    void *ctx;
};

/*
 * Append the ids of text [n], which must be well-formed UTF-8.  `ordinary` encodes the text before, between and after
 * special tokens.  Fails as ordinary.encode does.
 */
int meg_special_tokens_encode(const struct meg_special_tokens *s, const char *text, int64_t n, struct meg_ids *out,
                              const struct meg_id_sink *sink, struct meg_ordinary_encoder ordinary, struct meg_err *e);
