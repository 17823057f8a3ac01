/* The options that name a run's data, and what they come to. */
#ifndef MEG_DATA_DATA_CONF_H
#define MEG_DATA_DATA_CONF_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "data/sampler.h"
#include "data/split.h"
#include "option/opt.h"

struct meg_megatron_release;
struct meg_data_conf {
    struct meg_str_list data_path; /* prefix | weight prefix ... | prefix prefix ... */
    const char *split;
    struct meg_str_list per_split_path[MEG_NUM_SPLITS]; /* --train-data-path, --valid-data-path, --test-data-path */
    const char *data_args_path, *per_split_data_args_path;
    struct meg_str_list weighted_split[MEG_NUM_SPLITS]; /* --train-weighted-split-paths and its like */
    const char *weighted_split_file[MEG_NUM_SPLITS];
    bool mock_data;
    const char *data_order; /* "auto", "megatron-lm", "megatron-deepspeed" */
    const char *data_cache_path;
    bool renormalize_blend_weights;
    double mid_level_dataset_surplus; /* NaN: not given */
    bool reset_position_ids, reset_attention_mask, eod_mask_loss;
    const char *dataloader_type;
    bool no_data_sharding;
};
extern const struct meg_opt meg_data_opts[];

/* MEG_EUSAGE when a release of Megatron-LM has not an option that was given. */
int meg_data_conf_check(const struct meg_data_conf *c, const struct meg_megatron_release *release, struct meg_err *e);

/* The sampler that --dataloader-type and --no-data-sharding ask for. */
enum meg_data_sampler_type meg_data_conf_sampler_type(const struct meg_data_conf *c);

/* One list of files: n prefixes, and as many weights or none (NULL). */
struct meg_data_blend {
    int n;
    char **prefix;
    double *weight;
    double (*range)[2]; /* of each file: the fractions where it begins and ends; NULL: by the split */
    char *name;         /* of a group; else NULL */
};
enum { MEG_MAX_BLEND_DATASETS = 32766 };

/*
 * Which data was chosen.  Made-up data: every n is 0.  With is_per_split each split has a blend of its
 * own, whole; else all read blend[0], shared out by split.
 */
struct meg_data_blends {
    bool is_mock, is_per_split;
    bool is_deepspeed; /* samples in Megatron-DeepSpeed's order */
    struct meg_data_blend blend[MEG_NUM_SPLITS];
    const char *split; /* c's, or a constant; NULL with is_per_split */
};

/*
 * meg_data_blends_read - read what the options name (argument files too)
 * MEG_EUSAGE when there is no source or more than one, or words that fit none of the forms.
 * The caller frees with meg_data_blends_free, on success.
 */
int meg_data_blends_read(struct meg_data_blends *out, const struct meg_data_conf *c, struct meg_err *e);
void meg_data_blends_free(struct meg_data_blends *ch);

#endif
