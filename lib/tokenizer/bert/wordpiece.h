/*
 * wordpiece.h - WordPiece segmentation of a word (Schuster and Nakajima 2012, as in BERT).  At each position, choose
 * the longest token that matches: any token at the beginning of the word, a continuation token ("##...") elsewhere.  If
 * no token matches at some position, the entire word is unknown.
 */
#pragma once
#include <stdint.h>
#include "base/err.h"
#include "base/strtab.h"
#include "tokenizer/trie.h"

/* A WordPiece vocabulary.  It starts as { 0 } and is read-only after it is built: any number of threads may use it. */
struct meg_wordpiece {
    /* initial: all tokens, matched at the beginning of a word; continuation: continuation tokens without the prefix */
    struct meg_trie initial, continuation;
    int32_t unk;       /* id of words that cannot be segmented or are too long */
    int64_t max_chars; /* maximum number of characters of a word */
};

/*
 * meg_wordpiece_build - build the tries; token k has id id[k], or k if id is NULL
 *   prefix  prefix of continuation tokens, usually "##"
 * Fails as meg_trie_build does.  The caller frees w with meg_wordpiece_free, even after a failure.
 */
int meg_wordpiece_build(struct meg_wordpiece *w, const struct meg_strtab *tokens, const int32_t *id, const char *prefix,
                        int32_t unk, int64_t max_chars, struct meg_err *e);
void meg_wordpiece_free(struct meg_wordpiece *w);

/*
 * Write the ids of a word of n bytes, which must be well-formed UTF-8, to ids [max(n, 1)].  Return the number of ids.
 */
int64_t meg_wordpiece_encode(const struct meg_wordpiece *w, const char *s, int64_t n, int32_t *ids);
