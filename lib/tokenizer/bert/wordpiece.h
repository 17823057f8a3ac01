/*
 * wordpiece.h - WordPiece segmentation of a word (Schuster and Nakajima 2012, as in BERT): greedily take the longest
 * token that matches, first among initial tokens, then among continuation tokens ("##...").
 */
#ifndef MEG_TOKENIZER_BERT_WORDPIECE_H
#define MEG_TOKENIZER_BERT_WORDPIECE_H

#include <stdint.h>

#include "base/decls.h"
#include "base/err.h"
#include "base/strtab.h"
#include "base/trie.h"

MEG_BEGIN_DECLS

/* Starts as { 0 }; read-only once built, any number of threads may use it. */
struct meg_wordpiece {
    struct meg_trie initial, continuation; /* the latter without prefix */
    int32_t unk;                           /* id of a word that cannot be segmented, */
    int64_t max_chars;                     /* or has more characters than this */
};

/*
 * meg_wordpiece_build - build the tries; token k has id id[k], or k if id is NULL
 * If prefix is empty, all tokens are in both tries.  MEG_EFORMAT if there are too many tokens.
 */
int meg_wordpiece_build(struct meg_wordpiece *w, const struct meg_strtab *tokens, const int32_t *id, const char *prefix,
                        int32_t unk, int64_t max_chars, struct meg_err *e);
void meg_wordpiece_free(struct meg_wordpiece *w);

/* Write the ids of a word of n bytes, well-formed UTF-8, to ids [max(n, 1)]; return their number. */
int64_t meg_wordpiece_encode(const struct meg_wordpiece *w, const char *s, int64_t n, int32_t *ids);

MEG_END_DECLS

#endif
