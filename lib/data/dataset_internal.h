/* dataset_internal.h - the members of struct meg_dataset and the settings of its samples; private to lib/data. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "data/blend/blend.h"
#include "data/blend/source.h"
#include "data/dataset.h"
#include "data/gpt_index.h"
#include "data/masked/bert_t5_sample.h"
#include "data/masked/sentence_map.h"
#include "file/file.h"

/* Settings for reading a GPT sample from the token stream and computing its masks. */
struct meg_sample_conf {
    struct meg_gpt_index_conf index;
    int64_t enc_length; /* T5: tokens of the encoder's input; 0: none */
    int32_t eod, pad;   /* token ids; -1 if the tokenizer has none */
    int64_t vocab_size; /* exclusive upper bound of the ids; 0: no upper bound */
    bool reset_position_ids, reset_attention_mask, eod_mask_loss;
};

/* Settings for building a BERT or T5 sample. */
struct meg_masked_sample_conf {
    struct meg_masked_conf conf;
    struct meg_masked_vocab vocab;
    int64_t seq_length;
    uint32_t seed;
};

/*
 * A dataset is either a blend of other datasets or the part of one source that a split reads.  A blend has nmember > 0
 * and uses `member` and `blend`.  Otherwise, src is set; GPT uses `index`, and BERT and T5 use masked_conf and
 * sentence_map.
 */
struct meg_dataset {
    int64_t len;
    /* build sample i of a dataset that is not a blend */
    int (*sample)(const struct meg_dataset *ds, int64_t i, struct meg_batch *out, struct meg_err *e);
    struct meg_sample_conf conf;
    const struct meg_source *src; /* borrowed */
    struct meg_gpt_index index;
    struct meg_masked_sample_conf masked_conf;
    struct meg_sentence_map sentence_map;
    int nmember;
    struct meg_dataset **member; /* [nmember] owned */
    struct meg_blend_index blend;
    struct meg_mmap map[3]; /* mapped cache files of the index; zeroed if the index is in allocated memory */
};

/* Build sample i of a GPT dataset that is not a blend, like meg_dataset_sample. */
int meg_gpt_sample(const struct meg_dataset *ds, int64_t i, struct meg_batch *out, struct meg_err *e);
/* Return MEG_EFAIL with the message that a blend takes more samples from ds than ds has. */
int meg_dataset_exhausted(const struct meg_dataset *ds, struct meg_err *e);
/* Return MEG_EFORMAT with the message that the cached arrays do not match ds. */
int meg_dataset_cache_mismatch(const struct meg_dataset *ds, struct meg_err *e);
/* Return MEG_EFORMAT unless id is in [0, vocab_size); with vocab_size 0 the only condition is id >= 0. */
int meg_dataset_check_id(const struct meg_dataset *ds, int32_t id, int64_t vocab_size, struct meg_err *e);
void meg_dataset_close(struct meg_dataset *ds); /* accepts NULL */
