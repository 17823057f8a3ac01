/*
 * Samples of BERT and T5: sentences in which some words are hidden.  Sample for sample and draw for
 * draw as Megatron-LM's BERTMaskedWordPieceDataset and T5MaskedWordPieceDataset.
 */
#ifndef MEG_DATA_MASKED_BERT_T5_SAMPLE_H
#define MEG_DATA_MASKED_BERT_T5_SAMPLE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "data/dataset.h"

/* How words are hidden. */
struct meg_mask_conf {
    double prob; /* share of the tokens, in (0, 1) */
    int64_t max_ngram;
    bool whole_word;    /* hide all pieces of a word, or none */
    bool longer_ngrams; /* favour long spans instead of short ones */
    bool geometric;     /* lengths of spans are geometric (0.2), not in proportion to 1/length */
};

enum meg_masked_type { MEG_MASKED_BERT, MEG_MASKED_T5 };

struct meg_masked_conf {
    enum meg_masked_type type;
    int64_t decoder_seq_length; /* T5; the encoder's is the run's */
    double short_seq_prob;      /* share of samples that are made shorter, in [2^-31, 1], or 0 */
    bool has_pairs;             /* BERT: with a second segment, in order or swapped */
    struct meg_mask_conf mask;
};

/* BERT: whole words, up to 3 of them, in pairs.  T5: whole words, up to 10, geometric. */
struct meg_masked_conf meg_masked_defaults(enum meg_masked_type type);

/* What is asked of a vocabulary.  The arrays are borrowed for as long as there are datasets. */
struct meg_masked_vocab {
    int64_t size;                         /* ids are below */
    const unsigned char *is_continuation; /* [size] 1: the piece goes on with a word (it begins with ##) */
    int32_t cls, sep, mask, pad;          /* pad: T5, too */
    int32_t bos, eos;                     /* T5 */
    const int32_t *sentinel;              /* [nsentinel] T5: <extra_id_0>, <extra_id_1>, ... */
    int64_t nsentinel;
    const int32_t *random_ids; /* [ndrawn] BERT: ids a random one is drawn from; NULL: all */
    int64_t nrandom;
};

/*
 * A sample of BERT, in buffers of the caller's, each [seq_length] and written whole.
 *   text          CLS A SEP, and with a second segment B SEP; hidden tokens are MASK, another id, or
 *                 themselves; then pad
 *   types         0 up to the first SEP, 1 behind it; then pad
 *   labels        the id that was hidden; -1 elsewhere
 *   loss_mask     1 where a token was hidden
 *   padding_mask  1 on tokens; then pad
 */
struct meg_bert_sample {
    int32_t *text, *types, *labels, *loss_mask, *padding_mask;
    bool is_random;    /* A and B are swapped: the label of the pair */
    bool is_truncated; /* tokens were dropped */
};

/*
 * A sample of T5; the first two [seq_length], the others [decoder_seq_length].
 *   text_enc   the tokens, a sentinel in place of each hidden span; then pad
 *   enc_mask   1 on tokens
 *   text_dec   BOS, and each sentinel with the span it stands for; then pad
 *   labels     text_dec from its second token on, and EOS; then -1
 *   loss_mask, dec_mask  1 on tokens
 */
struct meg_t5_sample {
    int32_t *text_enc, *enc_mask;
    int32_t *text_dec, *labels, *loss_mask, *dec_mask;
    bool is_truncated;
};

/*
 * Sample i, in [0, len).  Draws come from MT19937 seeded with --seed + i (i of the member where the
 * dataset is a blend).  Any number of threads may call at once.
 * MEG_EFORMAT when an id is outside of the vocabulary or an index file names what is not there;
 * MEG_EUSAGE when decoder_seq_length or the sentinels do not suffice.
 */
int meg_bert_sample(const struct meg_dataset *ds, int64_t i, struct meg_bert_sample *out, struct meg_err *e);
int meg_t5_sample(const struct meg_dataset *ds, int64_t i, struct meg_t5_sample *out, struct meg_err *e);

#endif
