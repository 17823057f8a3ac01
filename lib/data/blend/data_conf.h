/* data_conf.h - the data options of a run, and the datasets and weights that they specify. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "base/err.h"
#include "data/blend/split.h"
#include "data/sampler.h"
#include "option/opt.h"

struct meg_megatron_release;
struct meg_data_conf {
    struct meg_str_list data_path; /* dataset prefixes, or WEIGHT PREFIX pairs */
    const char *split;
    struct meg_str_list per_split_path[MEG_NUM_SPLITS]; /* --train-data-path, --valid-data-path, ... */
    const char *data_args_path, *per_split_data_args_path;
    struct meg_str_list weighted_split[MEG_NUM_SPLITS]; /* --train-weighted-split-paths, ... */
    const char *weighted_split_file[MEG_NUM_SPLITS];
    bool mock_data;
    const char *data_order; /* "auto", "megatron-lm", "megatron-deepspeed" */
    const char *data_cache_path;
    bool renormalize_blend_weights;
    double mid_level_dataset_surplus; /* NaN if the option is not used */
    bool reset_position_ids, reset_attention_mask, eod_mask_loss;
    double mask_prob, short_seq_prob; /* BERT; NaN if the option is not used */
    const char *dataloader_type;
    bool no_data_sharding;
};
extern const struct meg_opt meg_data_opts[];

/*
 * Check --renormalize-blend-weights and --mid-level-dataset-surplus.  Returns MEG_EUSAGE if one of these options is
 * used but does not exist in this `release` of Megatron-LM.  Returns MEG_EUSAGE if the surplus is out of range.
 */
int meg_data_conf_check(const struct meg_data_conf *c, const struct meg_megatron_release *release, struct meg_err *e);

/* Return the sampler that --dataloader-type and --no-data-sharding select. */
enum meg_data_sampler_type meg_data_conf_sampler_type(const struct meg_data_conf *c);

/* A list of datasets to blend; n is 0 if no dataset is named. */
struct meg_data_blend {
    int n;
    char **prefix;      /* [n] */
    double *weight;     /* [n] weights; NULL if none are given */
    double (*range)[2]; /* [n] range to read from each dataset: begin and end as fractions in [0,1]; NULL: no ranges */
    char *name;         /* name of the Megatron-DeepSpeed group, or NULL */
};
enum { MEG_MAX_BLEND_DATASETS = 32766 };

/*
 * The data of all splits.  If is_per_split is true, split i reads the datasets of blend[i][0], and of further blends if
 * it has several groups of Megatron-DeepSpeed: the ranges in `range` or, if `range` is NULL, the complete datasets.  If
 * is_per_split is false, --split divides each dataset of blend[0][0] among the splits.  If is_mock is true, there are
 * no blends.
 */
struct meg_data_blends {
    bool is_mock, is_per_split;
    bool is_deepspeed;                            /* order samples as Megatron-DeepSpeed does */
    struct meg_data_blend *blend[MEG_NUM_SPLITS]; /* [num[i]] */
    int num[MEG_NUM_SPLITS];
    const char *split; /* value of --split or its default; borrowed; NULL with is_per_split */
};

/*
 * meg_data_blends_read - parse the options, and the files that contain their arguments, into lists of datasets
 * Returns MEG_EUSAGE if the options specify no source of data or several sources, if two options cannot be combined, or
 * if a list of datasets is invalid.
 * Returns MEG_EFORMAT if a file has a syntax error.  It also returns the errors of meg_read_text.
 * After success, the caller frees *out with meg_data_blends_free.
 */
int meg_data_blends_read(struct meg_data_blends *out, const struct meg_data_conf *c, struct meg_err *e);
void meg_data_blends_free(struct meg_data_blends *b);

/* Append an empty blend to those of a split, and return it; the pointer is valid until the next call. */
struct meg_data_blend *meg_data_blends_add(struct meg_data_blends *b, int split);
