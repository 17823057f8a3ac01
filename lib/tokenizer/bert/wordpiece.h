/*
 * wordpiece.h - words to WordPiece ids (Schuster and Nakajima 2012, as BERT has it): the longest piece
 * a word begins with, then again from there among the pieces that go on, until the word is used up.
 */
#ifndef MEG_TOKENIZER_BERT_WORDPIECE_H
#define MEG_TOKENIZER_BERT_WORDPIECE_H

#include <stdint.h>

#include "base/err.h"
#include "base/strtab.h"
#include "base/trie.h"

/* Starts as { 0 }; once built it is only read, by any number of threads. */
struct meg_wordpiece {
    struct meg_trie first, more; /* pieces that begin a word; that go on, without their prefix */
    int32_t unk;                 /* id of a word that cannot be spelled */
    int64_t max_chars;           /* and of one with more characters than these */
};

/*
 * meg_wordpiece_build - a lookup of the tokens, of which number k has id[k], or k where id is
 * NULL.  Of an empty prefix all tokens do both.  MEG_EFORMAT when they are too many.
 */
int meg_wordpiece_build(struct meg_wordpiece *w, const struct meg_strtab *tokens, const int32_t *id, const char *prefix,
                        int32_t unk, int64_t max_chars, struct meg_err *e);
void meg_wordpiece_free(struct meg_wordpiece *w);

/* The ids of a word of n bytes, well-formed UTF-8, written to ids [max(n, 1)]; returns their number. */
int64_t meg_wordpiece_encode(const struct meg_wordpiece *w, const char *s, int64_t n, int32_t *ids);

#endif
