/*
 * shard.h - options of data-parallel sharding (ZeRO) and the elements of the flat buffer that a rank updates.
 *
 * Gradients are reduced one bucket at a time.  params/param.h defines the buckets; parallel/zero.h defines their
 * shards.  In ZeRO stage 1 (the distributed optimizer), each rank updates its shard of each bucket, and keeps optimizer
 * state only for its shards (Rajbhandari et al. 2020).  Stage 2 shards the gradients in addition; stage 3 shards the
 * gradients and the parameters (optim/zero/layerwise.h).
 */
#pragma once
#include "option/opt.h"
#include "params/param.h"

struct meg_zero_conf {
    bool use_distributed_optimizer;
    int64_t num_instances;
    int64_t bucket_size; /* number of elements per bucket; MEG_UNSET: default of --ddp-bucket-size */
    bool overlap_grad_reduce, overlap_param_gather;
    int64_t zero_stage;   /* 0 to 3; MEG_UNSET: derived from use_distributed_optimizer and use_torch_fsdp2 */
    bool use_torch_fsdp2; /* stage 3 with the restrictions of Megatron's FSDP2 */
    bool nccl_ub;         /* register parameters and gradients with NCCL (meg_mesh_alloc) */
};
extern const struct meg_opt meg_zero_opts[];

/*
 * Check the options and set l->zero.  `is_tied` states whether the output weight is tied to the word embedding,
 * `params` is the dtype of the parameters.  Return MEG_EUSAGE if an option is invalid.
 */
int meg_zero_fit(struct meg_layout *l, const struct meg_zero_conf *c, bool is_tied, enum meg_dtype params,
                 struct meg_err *e);

/* Elements [begin, end) of the flat buffer that this rank has: its shard of one bucket or, in stage 0, all. */
struct meg_zero_bucket_shard {
    int64_t begin, end;
    int64_t shard_offset;     /* offset of the bucket shard in arrays that concatenate all bucket shards */
    int first_range, nranges; /* elements of meg_zero_shard.param_range that are in this bucket shard */
};

/* The elements of one span of a parameter (meg_param_span_at) in one bucket shard. */
struct meg_zero_param_range {
    int bucket_shard;   /* index into meg_zero_shard.bucket_shard */
    int row;            /* index into meg_params.row */
    int64_t span;       /* index of the span */
    int64_t begin, end; /* element range, relative to the bucket shard's begin */
};

struct meg_zero_shard {
    struct meg_zero_bucket_shard *bucket_shard; /* [nbucket_shards] one per bucket; in stage 0, one per dtype */
    struct meg_elem_range *range;               /* [nbucket_shards] begin and end of each bucket shard */
    int nbucket_shards;
    int nupdated;                             /* the first bucket shards; those of frozen parameters follow (ZeRO-3) */
    int64_t numel;                            /* number of elements in the first nupdated bucket shards */
    struct meg_zero_param_range *param_range; /* [nparam_ranges] ranges in the order of the flat buffer */
    int nparam_ranges;
    /* arrays that concatenate the bucket shards, in device memory; owned by the optimizer */
    void *params; /* ZeRO-3: in the dtypes of the model; else NULL */
    void *grads;  /* ZeRO-2/3: gradients of the first nupdated bucket shards; else NULL */
};

/* Return the number of elements in a rank's shard of bucket b.  In stage 0, the shard is the complete bucket. */
int64_t meg_zero_bucket_shard_numel(const struct meg_params *p, const struct meg_layout *l, int b);
/* Return the number of elements that a rank updates. */
int64_t meg_zero_shard_numel(const struct meg_params *p, const struct meg_layout *l);
/* Return the number of bytes of a rank's shards of the parameters of a model in `dtype`, with the frozen ones. */
size_t meg_zero_shard_nbytes(const struct meg_params *p, const struct meg_layout *l, enum meg_dtype dtype);
/* Compute the bucket shards of the rank with coordinates `at`.  Free *s with meg_zero_shard_free. */
void meg_zero_shard_make(struct meg_zero_shard *s, const struct meg_params *p, const struct meg_layout *l,
                         struct meg_rank_coords at);
void meg_zero_shard_free(struct meg_zero_shard *s);
