/*
 * bert_t5_sample.h - samples of BERT and T5: sentences with masked words.  Sample for sample and random number for
 * random number as Megatron-LM's BERTMaskedWordPieceDataset and T5MaskedWordPieceDataset.
 */
#ifndef MEG_DATA_MASKED_BERT_T5_SAMPLE_H
#define MEG_DATA_MASKED_BERT_T5_SAMPLE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/decls.h"
#include "base/err.h"
#include "data/dataset.h"

MEG_BEGIN_DECLS

struct meg_mask_conf {
    double prob;        /* of a token to be masked, in (0, 1) */
    int64_t max_ngram;  /* words of a span at most */
    bool whole_word;    /* mask all tokens of a word, or none */
    bool longer_ngrams; /* prefer long spans to short ones */
    bool geometric;     /* draw lengths of spans from a geometric distribution (0.2), not in proportion to 1/length */
};

enum meg_masked_type { MEG_MASKED_BERT, MEG_MASKED_T5 };

struct meg_masked_conf {
    enum meg_masked_type type;
    int64_t decoder_seq_length; /* T5; seq_length of the run is the encoder's */
    double short_seq_prob;      /* fraction of samples that are made shorter, in [2^-31, 1], or 0 */
    bool has_pairs;             /* BERT: with a second segment, in order or swapped */
    struct meg_mask_conf mask;
};

/* Return Megatron-LM's defaults: whole words; BERT: spans of up to 3, pairs; T5: spans of up to 10, geometric. */
struct meg_masked_conf meg_masked_defaults(enum meg_masked_type type);

/* What masking needs of a vocabulary.  The arrays are borrowed as long as datasets are open. */
struct meg_masked_vocab {
    int64_t size;                         /* ids are below */
    const unsigned char *is_continuation; /* [size] 1: the token continues a word (it begins with ##) */
    int32_t cls, sep, mask, pad;          /* mask, pad: also of T5 */
    int32_t bos, eos;                     /* T5 */
    const int32_t *sentinel;              /* [nsentinel] T5: <extra_id_0>, <extra_id_1>, ... */
    int64_t nsentinel;
    const int32_t *random_ids; /* [nrandom] BERT: ids from which a random replacement is drawn; NULL: all */
    int64_t nrandom;
};

/*
 * A sample of BERT, in arrays of the caller's, each [seq_length].
 *   text          CLS A SEP, and with a second segment B SEP; a masked token is MASK, another id or itself; then pad
 *   types         0 up to the first SEP, 1 after it; then pad
 *   labels        original ids of masked tokens; -1 elsewhere
 *   loss_mask     1 at masked tokens
 *   padding_mask  1 at tokens; then pad
 */
struct meg_bert_sample {
    int32_t *text, *types, *labels, *loss_mask, *padding_mask;
    bool is_random;    /* A and B are swapped: the label of the pair */
    bool is_truncated; /* tokens were removed */
};

/*
 * A sample of T5; the first two arrays [seq_length], the others [decoder_seq_length].
 *   text_enc   the tokens, with one sentinel for each masked span; then pad
 *   enc_mask   1 at tokens
 *   text_dec   BOS, and each sentinel followed by the tokens of its span; then pad
 *   labels     text_dec from its second token, and EOS; then -1
 *   loss_mask, dec_mask  1 at tokens
 */
struct meg_t5_sample {
    int32_t *text_enc, *enc_mask;
    int32_t *text_dec, *labels, *loss_mask, *dec_mask;
    bool is_truncated;
};

/*
 * meg_bert_sample, meg_t5_sample - make sample i, in [0, len)
 * Random numbers are those of MT19937 seeded with --seed + i (in a blend, i of the member).  Any number of threads may
 * call at once.
 * Return MEG_EFORMAT when an id is outside the vocabulary or an index file refers to data that is not there, MEG_EUSAGE
 * when decoder_seq_length or the number of sentinels is too small.
 */
int meg_bert_sample(const struct meg_dataset *ds, int64_t i, struct meg_bert_sample *out, struct meg_err *e);
int meg_t5_sample(const struct meg_dataset *ds, int64_t i, struct meg_t5_sample *out, struct meg_err *e);

MEG_END_DECLS

#endif
