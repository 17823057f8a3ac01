/* What the files of this room share and nobody else needs. */
#ifndef MEG_DATA_INTERNAL_H
#define MEG_DATA_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "data/blend.h"
#include "data/data_conf.h"
#include "data/dataset.h"
#include "data/gpt_index.h"
#include "data/masked/bert_t5_sample.h"
#include "data/masked/sentence_map.h"
#include "file/file.h"

/* .idx: 9 bytes of magic, u64 version, u8 type, u64 sequences, u64 document index entries */
#define MEG_IDX_MAGIC "MMIDIDX\0" /* the ninth byte is the literal's own zero */
#define MEG_IDX_HEADER 34

/* An index that --dataset-impl lazy or cached wrote: the arrays, i64, where they lie in it. */
struct meg_legacy_index {
    int dtype;
    int64_t sequences, entries;                 /* of the document index */
    const unsigned char *sizes, *starts, *docs; /* starts in tokens, one more than sizes */
};
/* Whether these bytes are one, and what it has; MEG_EFORMAT names the file NAME.idx. */
bool meg_legacy_index_detect(const void *idx, size_t n);
int meg_legacy_index_read(struct meg_legacy_index *l, const char *name, const void *idx, size_t n, struct meg_err *e);

/* A group of datasets, each with its range, from the words of from: MEG_EUSAGE when they are none.
 * And the only one that a file names. */
int meg_data_parse_group(struct meg_data_blend *b, const char *text, const char *from, struct meg_err *e);
int meg_data_parse_group_file(struct meg_data_blend *b, const char *path, struct meg_err *e);
#define MEG_ONE_GROUP_MSG "%s: several groups, a split takes one; evaluate others with meg-eval"

/* How the samples of a dataset are cut and marked. */
struct meg_sample_conf {
    struct meg_gpt_index_conf cut;
    int32_t eod, pad;   /* -1: there is none */
    int64_t vocab_size; /* 0: ids are not checked */
    bool reset_position_ids, reset_attention_mask, eod_mask_loss;
};

/* What the samples of BERT and T5 are made by. */
struct meg_masked_sample_conf {
    struct meg_masked_conf conf;
    struct meg_masked_vocab vocab;
    int64_t seq_length;
    uint32_t seed;
};

/*
 * A file's share of a split (src), or a blend of such (member).  The samples of a file are those of
 * GPT (index), or of BERT and T5 (masked, rows).
 */
struct meg_dataset {
    int64_t len;
    struct meg_sample_conf how;
    const struct meg_source *src;
    struct meg_gpt_index index;
    struct meg_masked_sample_conf masked;
    struct meg_sentence_map rows;
    int nmember;
    struct meg_dataset **member; /* owned */
    struct meg_blend_index blend;
    struct meg_mmap map[3]; /* the cache files that index, rows or blend lies in, if any */
};
/* Move on to the dataset that gives sample *i of *ds, and the sample's number there: MEG_EFAIL when
 * it has no such sample. */
int meg_dataset_find(const struct meg_dataset **ds, int64_t *i, struct meg_err *e);
/* MEG_EFAIL: a blend wants more of ds than there is. */
int meg_dataset_exhausted(const struct meg_dataset *ds, struct meg_err *e);
/* MEG_EFORMAT: the cached arrays of ds are of something else. */
int meg_dataset_cache_mismatch(const struct meg_dataset *ds, struct meg_err *e);
/* MEG_EFORMAT unless id is in [0, vocab_size); vocab_size 0: any that is not negative is. */
int meg_dataset_check_id(const struct meg_dataset *ds, int32_t id, int64_t vocab_size, struct meg_err *e);
void meg_dataset_close(struct meg_dataset *ds); /* accepts NULL */

#endif
