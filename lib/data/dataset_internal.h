/* dataset_internal.h - struct meg_dataset: what it owns and how its samples are made; private to lib/data. */
#ifndef MEG_DATA_DATASET_INTERNAL_H
#define MEG_DATA_DATASET_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/decls.h"
#include "data/blend.h"
#include "data/dataset.h"
#include "data/gpt_index.h"
#include "data/masked/bert_t5_sample.h"
#include "data/masked/sentence_map.h"
#include "data/source.h"
#include "file/file.h"

MEG_BEGIN_DECLS

/* How a GPT sample is read from the token stream, and its masks. */
struct meg_sample_conf {
    struct meg_gpt_index_conf index;
    int32_t eod, pad;   /* -1: the tokenizer has none */
    int64_t vocab_size; /* 0: ids are not checked */
    bool reset_position_ids, reset_attention_mask, eod_mask_loss;
};

/* How a BERT or T5 sample is made. */
struct meg_masked_sample_conf {
    struct meg_masked_conf conf;
    struct meg_masked_vocab vocab;
    int64_t seq_length;
    uint32_t seed;
};

/*
 * Either a range of one source for one split (src), with samples of GPT (index) or of BERT and T5 (masked_conf,
 * sentence_map); or a blend of such datasets (member, blend).
 */
struct meg_dataset {
    int64_t len;
    struct meg_sample_conf conf;
    const struct meg_source *src; /* borrowed */
    struct meg_gpt_index index;
    struct meg_masked_sample_conf masked_conf;
    struct meg_sentence_map sentence_map;
    int nmember;
    struct meg_dataset **member; /* [nmember] owned */
    struct meg_blend_index blend;
    struct meg_mmap map[3]; /* cache files of the arrays; zeroed where these are in memory */
};

/*
 * Resolve sample *i of *ds: replace a blend by the member that the sample is from, and *i by its number there.
 * Returns MEG_EFAIL when the member has no such sample.
 */
int meg_dataset_resolve(const struct meg_dataset **ds, int64_t *i, struct meg_err *e);
/* Return MEG_EFAIL with a message: a blend takes more samples of ds than it has. */
int meg_dataset_exhausted(const struct meg_dataset *ds, struct meg_err *e);
/* Return MEG_EFORMAT with a message: the cached arrays of ds do not fit it. */
int meg_dataset_cache_mismatch(const struct meg_dataset *ds, struct meg_err *e);
/* Return MEG_EFORMAT unless id is in [0, vocab_size); with vocab_size 0, unless it is 0 or more. */
int meg_dataset_check_id(const struct meg_dataset *ds, int32_t id, int64_t vocab_size, struct meg_err *e);
void meg_dataset_close(struct meg_dataset *ds); /* accepts NULL */

MEG_END_DECLS

#endif
