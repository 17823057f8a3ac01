/* data_splits_internal.h - state common to GPT, BERT and T5 data, and the table of operations that differ. */
#pragma once
#include "data/blend/data_splits.h"
#include "data/blend/source.h"
#include "data/dataset_internal.h"
#include "data/index_cache.h"
#include "tokenizer/megatron_release.h"

/* The name and the functions in which GPT, BERT and T5 datasets differ. */
struct meg_data_class {
    const char *name;       /* Megatron-LM's class name, used in the names of cache files */
    bool has_split_in_name; /* these names also contain the split */
    /* Return the number of elements of src that --split divides: sequences for GPT, documents for BERT and T5. */
    int64_t (*num_elements)(const struct meg_source *src);
    /* Set p->tokens and, for GPT, p->samples and p->epochs.  Fail if there is too little data. */
    int (*plan)(const struct meg_data_splits *d, struct meg_mid_dataset *p, const struct meg_source *src,
                struct meg_err *e);
    /* Append Megatron-LM's description of the inputs from which the index of p is built. */
    void (*add_cache_key)(const struct meg_data_splits *d, const struct meg_mid_dataset *p, struct meg_str *out);
    /* Append the last part of Megatron-DeepSpeed's file name for the index of p. */
    void (*add_deepspeed_name)(const struct meg_data_splits *d, const struct meg_mid_dataset *p, struct meg_str *out);
    /* Load or build the index of ds; the caller must set ds->src.  c: cache files of the index; NULL: use no cache. */
    int (*build)(const struct meg_data_splits *d, const struct meg_mid_dataset *p, struct meg_dataset *ds,
                 const struct meg_index_cache_entry *c, struct meg_err *e);
    /* Build sample i of ds; the pointer is copied to the member `sample` of struct meg_dataset. */
    int (*sample)(const struct meg_dataset *ds, int64_t i, struct meg_batch *out, struct meg_err *e);
};

/*
 * The mid-level datasets [first, first + n) of one split, or of one of its groups: in Megatron-DeepSpeed's options, the
 * validation and the test split can have several groups.
 */
struct meg_split_group {
    int split, first, n;
    bool is_blend, is_weighted;
    int64_t num_samples;
    char *name;             /* name of a group of Megatron-DeepSpeed, or NULL */
    struct meg_dataset *ds; /* NULL before meg_data_splits_build */
};

struct meg_data_splits {
    const struct meg_data_class *type;
    struct meg_dataset_spec spec;
    char *tokenizer, *split_string,
        *cache_dir; /* split_string: --split, or NULL if datasets are listed for each split */
    struct meg_split_matrix split_matrix;
    const struct meg_megatron_release *release;
    bool renormalize, is_deepspeed;
    double surplus;                            /* --mid-level-dataset-surplus or its default */
    struct meg_sample_conf sample_conf;        /* GPT */
    struct meg_masked_sample_conf masked_conf; /* BERT, T5 */
    struct meg_source **src;
    int nsrc, nmid;
    struct meg_mid_dataset *mid;   /* [nmid] mid-level datasets of all splits, in order */
    struct meg_source **mid_src;   /* [nmid] source of each mid-level dataset, borrowed from src */
    struct meg_split_group *group; /* [ngroup] groups of all splits that are read, in order */
    int ngroup;
    void (*on_index)(void *ctx, const char *name); /* arguments of meg_data_splits_build */
    void *on_index_ctx;
};

/*
 * meg_data_splits_plan - open the files that conf names, and compute the range and sample count of each split
 *   d  from meg_new; the caller has set d->type and, for GPT, d->sample_conf; for BERT and T5, d->masked_conf and
 *      d->sample_conf.index.seq_length; for T5, also d->sample_conf.enc_length
 * On success, sets *out to d.  On failure, closes d and leaves *out unchanged.  The errors are those of
 * meg_gpt_data_plan.
 */
int meg_data_splits_plan(struct meg_data_splits **out, struct meg_data_splits *d, const struct meg_data_conf *conf,
                         const struct meg_dataset_spec *spec, struct meg_err *e);
