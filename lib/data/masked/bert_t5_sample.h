/*
 * bert_t5_sample.h - samples of BERT and T5: sentences with masked words.  The samples are identical to those of
 * Megatron-LM's BERTMaskedWordPieceDataset and T5MaskedWordPieceDataset.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "base/err.h"
#include "data/dataset.h"

struct meg_mask_conf {
    double prob;        /* fraction of tokens to mask, in (0, 1) */
    int64_t max_ngram;  /* maximum number of words per span */
    bool whole_word;    /* mask all tokens of a word, or none */
    bool longer_ngrams; /* prefer long spans to short ones; no effect if `geometric` is true */
    bool geometric;     /* draw span lengths from a geometric distribution (p = 0.2), not in proportion to 1/length */
};

enum meg_masked_type { MEG_MASKED_BERT, MEG_MASKED_T5 };

struct meg_masked_conf {
    enum meg_masked_type type;
    int64_t decoder_seq_length; /* T5: sequence length of the decoder; seq_length is the encoder's */
    double short_seq_prob;      /* fraction of samples with a reduced target length: 0, or in [2^-31, 1] */
    bool has_pairs;             /* BERT: a sample has two segments, in order or swapped */
    struct meg_mask_conf mask;
};

/*
 * Return Megatron-LM's defaults: whole words are masked, in total 15% of the tokens, and 10% of the samples have a
 * reduced target length.  BERT has segment pairs and spans of 1 to 3 words.  T5 has spans of 1 to 10 words with
 * geometric lengths.  decoder_seq_length is 0; for T5, the caller sets it.
 */
struct meg_masked_conf meg_masked_defaults(enum meg_masked_type type);

/* Vocabulary data that masking requires.  The arrays are borrowed until the datasets are closed. */
struct meg_masked_vocab {
    int64_t size;                         /* exclusive upper bound of the ids */
    const unsigned char *is_continuation; /* [size] 1: the token continues a word (it begins with ##) */
    int32_t cls, sep, mask, pad;          /* token ids; T5 requires only pad */
    int32_t bos, eos;                     /* token ids, required by T5 only */
    const int32_t *sentinel;              /* [nsentinel] T5: <extra_id_0>, <extra_id_1>, ... */
    int64_t nsentinel;
    const int32_t *random_ids; /* [nrandom] BERT: ids from which a random replacement is drawn; NULL: all */
    int64_t nrandom;
};

/*
 * meg_bert_batch, meg_t5_batch - build sample i of a dataset that is not a blend, like meg_dataset_sample
 * BERT:
 *   tokens       CLS A SEP, or CLS A SEP B SEP if there are two segments; then pad.  A masked token is replaced by MASK
 *                or a random id, or is kept.
 *   token_types  0 through the first SEP, 1 after that SEP; 0 at padding, unlike in Megatron-LM
 *   labels       original ids of masked tokens; -1 elsewhere
 *   sentence_order  1: A and B are swapped; label of sentence-order prediction (SOP)
 * T5:
 *   enc_tokens   the tokens, with each masked span replaced by one sentinel; then pad
 *   tokens       BOS, then each sentinel followed by the tokens of its span; then pad
 *   labels       tokens without BOS, then EOS; then -1
 * The random generator is MT19937, seeded with --seed + k modulo 2^32.  k is i or, in a blend, the number of the sample
 * in its member dataset.
 * Both functions are thread-safe and return the errors of meg_dataset_sample.  meg_t5_batch returns MEG_EUSAGE when
 * decoder_seq_length or the number of sentinels is too small.
 */
int meg_bert_batch(const struct meg_dataset *ds, int64_t i, struct meg_batch *out, struct meg_err *e);
int meg_t5_batch(const struct meg_dataset *ds, int64_t i, struct meg_batch *out, struct meg_err *e);
