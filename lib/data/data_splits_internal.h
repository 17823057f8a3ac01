/* What the kinds of run data share, and what each has of its own. */
#ifndef MEG_DATA_DATA_SPLITS_INTERNAL_H
#define MEG_DATA_DATA_SPLITS_INTERNAL_H

#include "data/data_splits.h"
#include "data/index_cache.h"
#include "data/dataset_internal.h"
#include "data/source.h"
#include "tokenizer/megatron_release.h"

struct meg_data_class {
    const char *name; /* Megatron's, in the names of cache files */
    /* What a split shares out. */
    int64_t (*num_elements)(const struct meg_source *src);
    /* Fill the numbers of p that are known before the index, and see that it can give samples. */
    int (*plan)(const struct meg_data_splits *d, struct meg_mid_dataset *p, const struct meg_source *src,
                struct meg_err *e);
    /* What the index of p depends on, as Megatron says it. */
    void (*add_cache_key)(const struct meg_data_splits *d, const struct meg_mid_dataset *p, struct meg_str *out);
    /* The end of Megatron-DeepSpeed's name for the index of p. */
    void (*add_deepspeed_name)(const struct meg_data_splits *d, const struct meg_mid_dataset *p, struct meg_str *out);
    /* The index of ds, whose src is there; c: its cache, NULL where it has none. */
    int (*build)(const struct meg_data_splits *d, const struct meg_mid_dataset *p, struct meg_dataset *ds,
                 const struct meg_index_cache_entry *c, struct meg_err *e);
};

struct meg_split_members { /* the parts of one split */
    int first, n;
    bool is_blend, is_weighted;
    int64_t num_samples;
    char *name; /* in Megatron-DeepSpeed's file names: that of the split, or its own */
};

struct meg_data_splits {
    const struct meg_data_class *class;
    struct meg_dataset_spec spec;
    char *tokenizer, *split_string, *cache_dir; /* split_text is NULL when each split has its own files */
    struct meg_split_matrix split_matrix;
    const struct meg_megatron_release *release;
    bool renormalize, is_deepspeed;
    double surplus;                            /* of a dataset of a blend, where the release has it apart */
    struct meg_sample_conf sample_conf;        /* GPT */
    struct meg_masked_sample_conf masked_conf; /* BERT, T5 */
    struct meg_source **src;
    int nsrc, nmid;
    struct meg_mid_dataset *mid; /* of all groups, in order */
    struct meg_source **mid_src; /* [npart], borrowed from src */
    struct meg_split_members members[MEG_NUM_SPLITS];
    struct meg_dataset *ds[MEG_NUM_SPLITS];
};

/*
 * meg_data_splits_plan - fill d, zeroed but for class and what is of the class alone, and hand it out
 * meg_data_splits_open - build d, and hand it out
 * Errors as in data/data_splits.h; then d is closed and *out untouched.
 */
int meg_data_splits_plan(struct meg_data_splits **out, struct meg_data_splits *d, const struct meg_data_conf *conf,
                         const struct meg_dataset_spec *spec, struct meg_err *e);
int meg_data_splits_open(struct meg_data_splits **out, struct meg_data_splits *d, struct meg_err *e);

#endif
