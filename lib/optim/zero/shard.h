/*
 * shard.h - options of data-parallel sharding (ZeRO) and the elements of the flat buffer that a rank updates.
 *
 * Gradients are reduced one bucket at a time (model/param.h).  With the distributed optimizer each rank keeps the
 * optimizer state of its shard of every bucket and updates that shard (Rajbhandari et al. 2020; bucket rules are
 * Megatron's).  With ZeRO-2, it accumulates only the gradients of its shards; with ZeRO-3, it also keeps only the
 * parameters of its shards (optim/zero/layerwise.h).  parallel/zero.h describes how buckets are divided.
 */
#ifndef MEG_OPTIM_ZERO_SHARD_H
#define MEG_OPTIM_ZERO_SHARD_H
#include "model/param.h"
#include "option/opt.h"

MEG_BEGIN_DECLS

struct meg_zero_conf {
    bool use_distributed_optimizer;
    int64_t num_instances;
    int64_t bucket_size; /* number of elements per bucket */
    bool overlap_grad_reduce, overlap_param_gather;
    int64_t zero_stage;   /* 0 to 3; MEG_UNSET: derived from the other options */
    bool use_torch_fsdp2; /* stage 3 with the restrictions of Megatron's FSDP2 */
};
extern const struct meg_opt meg_zero_opts[];

/*
 * Check the options and set l->zero.  is_tied: whether the model ties its embeddings; params: dtype of its parameters.
 * Return MEG_EUSAGE, with a message that names the option, its value and the rule, if a check fails.
 */
int meg_zero_fit(struct meg_layout *l, const struct meg_zero_conf *c, bool is_tied, enum meg_dtype params,
                 struct meg_err *e);

/* Elements [begin, end) of the flat buffer that this rank updates: its shard of one bucket or, without ZeRO, all. */
struct meg_zero_bucket_shard {
    int64_t begin, end;
    int64_t shard_offset; /* offset of the bucket shard in buffers that concatenate all bucket shards */
    struct meg_hparam_range *hparam_range; /* [nhparam_ranges] ranges, relative to begin */
    int nhparam_ranges;
};

/* The elements of one parameter in one bucket shard. */
struct meg_zero_param_range {
    int bucket_shard;   /* index of the bucket shard */
    int row;            /* row of the parameter table */
    int64_t begin, end; /* element range, relative to the bucket shard's begin */
};

struct meg_zero_shard {
    struct meg_zero_bucket_shard *bucket_shard; /* [nbucket_shards] one per bucket; a single one without ZeRO */
    struct meg_elem_range *range;               /* [nbucket_shards] begin and end of each */
    int nbucket_shards;
    int64_t numel;                            /* number of elements in all bucket shards */
    struct meg_zero_param_range *param_range; /* [nparam_ranges] parameter ranges in the bucket shards, in order */
    int nparam_ranges;
};

/* Return the number of elements that a rank updates, in bucket b or in all buckets. */
int64_t meg_zero_bucket_shard_numel(const struct meg_params *p, const struct meg_layout *l, int b);
int64_t meg_zero_shard_numel(const struct meg_params *p, const struct meg_layout *l);
/* Compute the shard of rank `rank` among l->zero.nshards ranks.  Free it with meg_zero_shard_free. */
void meg_zero_shard_make(struct meg_zero_shard *s, const struct meg_params *p, const struct meg_layout *l, int rank);
void meg_zero_shard_free(struct meg_zero_shard *s);

MEG_END_DECLS
#endif
