/* train_wordpiece.h - split words into characters, the initial tokens of WordPiece training (train.h). */
#pragma once
#include <stdint.h>
#include "base/strtab.h"

#define MEG_WORDPIECE_PREFIX "##" /* prefix of tokens that continue a word */
/* number of special tokens: [PAD] [UNK] [CLS] [SEP] [MASK]; and maximum number of different characters */
enum { MEG_WORDPIECE_NUM_SPECIAL = 5, MEG_WORDPIECE_MAX_CHARS = 1000 };

/*
 * meg_wordpiece_split - split words into their characters
 *   tokens  out  must be empty before the call.  Set to the special tokens, the characters by code point, and the
 *                characters that continue a word, with the prefix, by code point.  At most MEG_WORDPIECE_MAX_CHARS
 *                different characters are kept: the most frequent ones and, on ties, those with smaller code points.
 *   words   UTF-8; count [words->n] is the count of each word
 *   sym     out  word i has the token ids sym[words->offset[i]] .. sym[words->offset[i] + len[i] - 1]; characters that
 *                are not kept are omitted
 *   len     out  [words->n]
 */
void meg_wordpiece_split(struct meg_strtab *tokens, const struct meg_strtab *words, const int64_t *count, int32_t *sym,
                         int32_t *len);
