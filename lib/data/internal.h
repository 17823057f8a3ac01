/* What the files of this room share and nobody else needs. */
#ifndef MEG_DATA_INTERNAL_H
#define MEG_DATA_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/file.h"
#include "data/blend.h"
#include "data/dataset.h"
#include "data/gpt_index.h"
#include "data/preprocess.h"

/* .idx: 9 bytes of magic, u64 version, u8 type, u64 sequences, u64 document index entries */
#define MEG_IDX_MAGIC "MMIDIDX\0" /* the ninth byte is the literal's own zero */
#define MEG_IDX_HEADER 34

/* Whether these are the bytes of an index that --dataset-impl lazy or cached wrote, and the same as
 * the bytes of ours, appended to out; MEG_EFORMAT names the file NAME.idx. */
bool meg_legacy_is(const void *idx, size_t n);
int meg_legacy_convert(struct meg_str *out, const char *name, const void *idx, size_t n,
                       struct meg_err *e);

/* How the samples of a dataset are cut and marked. */
struct meg_sample_conf {
    struct meg_gpt_cut cut;
    int32_t eod, pad;   /* -1: there is none */
    int64_t vocab_size; /* 0: ids are not checked */
    bool reset_position_ids, reset_attention_mask, eod_mask_loss;
};

/* A file's share of a split (src), or a blend of such (member). */
struct meg_dataset {
    int64_t len;
    struct meg_sample_conf how;
    const struct meg_source *src;
    struct meg_gpt_index index;
    int nmember;
    struct meg_dataset **member; /* owned */
    struct meg_blend_index blend;
    struct meg_map map[3]; /* the cache files that index or blend lies in, if any */
};
void meg_dataset_close(struct meg_dataset *ds); /* accepts NULL */

/* MEG_EUSAGE when the options of meg-preprocess make no sense, or not with this tokenizer; else
 * *workers is the number of threads they ask for. */
int meg_preprocess_check(const struct meg_preprocess_conf *c, const struct meg_tokenizer *tok,
                         int64_t *workers, struct meg_err *e);

#endif
