/*
 * train.h - train a vocabulary: split text into words, then repeatedly merge the most frequent adjacent pair (Sennrich
 * et al. 2016).
 *   - Byte-level BPE: words are the pre-tokens of GPT-2's pattern, and symbols are bytes.  Merges and ids equal those
 *     of Hugging Face's BpeTrainer, even if pairs have equal counts (train.c).
 *   - WordPiece, as in Hugging Face's WordPieceTrainer: words are split as by BERT's BasicTokenizer, and symbols are
 *     characters.  A symbol that continues a word has the prefix "##", which a merge removes from the right symbol.
 */
#pragma once
#include <stdint.h>
#include "base/err.h"
#include "base/strtab.h"
#include "tokenizer/bert/basic_tokenizer.h"
#include "tokenizer/pretokenize/pretokenize.h"

#define MEG_ENDOFTEXT "<|endoftext|>"
enum { MEG_BPE_MIN_VOCAB_SIZE = 257 }; /* number of ids before the first merge: <|endoftext|> and 256 bytes */

/*
 * The words of the texts counted so far, and their counts.  A trainer starts as { 0 } or, for WordPiece, as
 * { .is_wordpiece = true, .basic = ... }.
 */
struct meg_bpe_trainer {
    bool is_wordpiece;
    struct meg_bert_basic_tokenizer basic; /* WordPiece: splits texts into words */
    struct meg_str text_words;             /* WordPiece: words of a text, each with a final zero byte */
    struct meg_strtab words;               /* distinct words */
    int64_t *count;                        /* [ncount] count of each word; the first words.n elements are used */
    int64_t ncount;
    struct meg_pretokens pretokens;
};

/*
 * Count the words of a text of n bytes, which must be well-formed UTF-8.  WordPiece returns the errors of
 * meg_bert_basic_next.
 */
int meg_bpe_trainer_count(struct meg_bpe_trainer *t, const char *text, int64_t n, struct meg_err *e);
void meg_bpe_trainer_free(struct meg_bpe_trainer *t);

struct meg_bpe_vocab_merge {
    int32_t left, right;
};

/*
 * The trained vocabulary.  Byte-level BPE: id 0 is <|endoftext|>, followed by the 256 bytes in the order of their
 * characters (tokenizer/bpe/byte_alphabet.h).  WordPiece: the tokens of meg_wordpiece_split.  Then each merge adds a
 * token, unless that token already exists.
 */
struct meg_bpe_vocab {
    bool is_wordpiece;
    struct meg_strtab tokens;          /* bytes of each token, by id */
    struct meg_bpe_vocab_merge *merge; /* [nmerges] merges by rank, without duplicates */
    int64_t nmerges;
};

/*
 * meg_bpe_trainer_run - train a vocabulary from the counts of t, which remain unchanged
 * Training ends when there are vocab_size tokens, or when no pair occurs max(1, min_frequency) times or more.  For
 * byte-level BPE, vocab_size must be at least MEG_BPE_MIN_VOCAB_SIZE.  A WordPiece vocabulary has all tokens of
 * meg_wordpiece_split, even if there are more than vocab_size.
 *   vocab  out  starts as { 0 }; the caller frees it with meg_bpe_vocab_free
 */
void meg_bpe_trainer_run(struct meg_bpe_trainer *t, int64_t vocab_size, int64_t min_frequency,
                         struct meg_bpe_vocab *vocab);
void meg_bpe_vocab_free(struct meg_bpe_vocab *v);

/*
 * meg_bpe_vocab_write - write vocab.json, merges.txt, tokenizer.json and tokenizer_config.json for Hugging Face's
 * libraries or, for WordPiece, vocab.txt
 * The directory must exist and be locked by the caller (file/lock.h).  meg_commit_files replaces the files together;
 * file/commit.h describes their state after a failure.
 */
int meg_bpe_vocab_write(const struct meg_bpe_vocab *v, const char *dir, struct meg_err *e);
