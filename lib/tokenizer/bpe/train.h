/*
 * train.h - learning a byte-level BPE vocabulary from text: split into pieces by GPT-2's pattern,
 * then merge the most frequent pair of neighbours again and again (Sennrich et al. 2016).  Merges
 * and ids are those of Hugging Face's BpeTrainer, ties included: see train.c.
 */
#ifndef MEG_TOKENIZER_BPE_TRAIN_H
#define MEG_TOKENIZER_BPE_TRAIN_H

#include <stdint.h>

#include "base/err.h"
#include "base/strtab.h"
#include "tokenizer/pretokenize/pretokenize.h"

#define MEG_ENDOFTEXT "<|endoftext|>"
enum { MEG_BPE_MIN_VOCAB_SIZE = 257 }; /* ids before the first merge: <|endoftext|> and the bytes */

/* The pieces counted so far.  Starts as { 0 }. */
struct meg_bpe_trainer {
    struct meg_strtab words;
    int64_t *count; /* [words.n] of ncount */
    int64_t ncount;
    struct meg_pretokens pretokens;
};

/* Count the pieces of a text of n bytes, well-formed UTF-8. */
void meg_bpe_trainer_count(struct meg_bpe_trainer *t, const char *text, int64_t n);
void meg_bpe_trainer_free(struct meg_bpe_trainer *t);

struct meg_bpe_vocab_merge {
    int32_t left, right;
};

/* What was learnt: id 0 is <|endoftext|>, then the 256 bytes in the order of their characters
 * (tokenizer/bpe/byte_alphabet.h), then one token a merge; a token that two merges make has the first one's id. */
struct meg_bpe_vocab {
    struct meg_strtab tokens;          /* by id, as bytes */
    struct meg_bpe_vocab_merge *merge; /* [nmerges] by rank, no pair twice */
    int64_t nmerges;
};

/*
 * meg_bpe_trainer_run - merge until there are vocab_size tokens (>= MEG_BPE_MIN_VOCAB_SIZE) or no pair occurs
 * at least once and min_frequency times.  Uses up what l counted.  vocab starts as { 0 }.
 */
void meg_bpe_trainer_run(struct meg_bpe_trainer *t, int64_t vocab_size, int64_t min_frequency,
                         struct meg_bpe_vocab *vocab);
void meg_bpe_vocab_free(struct meg_bpe_vocab *v);

/*
 * meg_bpe_vocab_write - replace DIR/vocab.json, merges.txt, tokenizer.json and tokenizer_config.json (which
 * Hugging Face's tokenizers load) as one: all are new or, on failure, all are what they were.  DIR exists and
 * the caller has locked it (file/lock.h).
 */
int meg_bpe_vocab_write(const struct meg_bpe_vocab *v, const char *dir, struct meg_err *e);

#endif
