/*
 * How ranks that hold copies of the same parameters share the work on them: gradients are added up a
 * bucket at a time (model/param.h), and with the distributed optimizer each rank keeps the optimizer's
 * state of its slice of every bucket, and updates that (Rajbhandari et al. 2020; Megatron's rules).
 *
 * With ZeRO stage 2 a rank keeps the sums of its slices' gradients only, those of a section being added
 * up after each pass, and with stage 3 its slices of the parameters only, a section's being gathered
 * before each pass through it.
 *
 * Slices are equal, in the order of the ranks, and pay no heed to where parameters begin.  Several
 * instances: the ranks are split into so many groups of neighbours, each with the whole state.
 */
#ifndef MEG_OPTIM_ZERO_SHARD_H
#define MEG_OPTIM_ZERO_SHARD_H
#include "model/param.h"
#include "option/opt.h"

MEG_BEGIN_DECLS

struct meg_zero_conf {
    bool use_distributed_optimizer;
    int64_t num_instances;
    int64_t bucket_size; /* elements */
    bool overlap_grad_reduce, overlap_param_gather;
    int64_t zero_stage;   /* 1 optimizer state, 2 gradients, 3 parameters, too; MEG_UNSET: not said */
    bool use_torch_fsdp2; /* stage 3, by that one's rules */
};
extern const struct meg_opt meg_zero_opts[];

/*
 * Give a layout its buckets and slices, for a model with a tied embedding or none.  MEG_EUSAGE names the
 * option, its value and the rule.
 */
int meg_zero_fit(struct meg_layout *l, const struct meg_zero_conf *c, bool is_tied, enum meg_dtype params,
                 struct meg_err *e);

/* A run of the flat buffer that this rank updates. */
struct meg_zero_bucket_shard {
    int64_t begin, end;                    /* elements of the flat buffer */
    int64_t shard_offset;                  /* where it begins in buffers of pieces, which hold one behind the other */
    struct meg_hparam_range *hparam_range; /* nranges of them, counted from begin */
    int nhparam_ranges;
};

/* A run of a piece within one row of the parameter table. */
struct meg_zero_param_range {
    int bucket_shard, row;
    int64_t begin, end; /* counted from the piece's begin */
};

struct meg_zero_shard {
    struct meg_zero_bucket_shard *bucket_shard; /* all of the flat buffer, or this rank's slice of each bucket */
    struct meg_elem_range *range;               /* [npieces] begin and end of each */
    int nbucket_shards;
    int64_t numel;                            /* elements of all pieces */
    struct meg_zero_param_range *param_range; /* every element of every row that is in a piece, in order */
    int nparam_ranges;
};

/* Elements a rank updates, of bucket b and in all. */
int64_t meg_zero_bucket_shard_numel(const struct meg_params *p, const struct meg_layout *l, int b);
int64_t meg_zero_shard_numel(const struct meg_params *p, const struct meg_layout *l);
/* Those of the rank that is number rank among layout.shards. */
void meg_zero_shard_make(struct meg_zero_shard *s, const struct meg_params *p, const struct meg_layout *l, int rank);
void meg_zero_shard_free(struct meg_zero_shard *s);

MEG_END_DECLS
#endif
