/*
 * zero.h - how the data- and context-parallel ranks shard a model: ZeRO (Rajbhandari et al. 2020), FSDP.
 *
 * The parameters of a rank are one flat buffer, split into buckets (params/param.h).  In stages 1 to 3, each bucket is
 * divided into equal shards, one per rank of its data-parallel group, in rank order.  A shard may begin and end inside
 * a parameter, unless the optimizer needs complete parameters.  With --num-distributed-optimizer-instances N, there are
 * N groups of consecutive ranks, and each group has all shards.  The options and the collectives are in lib/optim/zero.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct meg_zero_layout {
    int stage;                /* 0: nothing is sharded; 1: optimizer state; 2: also gradients; 3: also parameters */
    int64_t nshards;          /* shards per bucket of dense parameters (meg_layout_num_shards); 0 in stage 0 */
    bool has_complete_params; /* each parameter is in one shard */
    int64_t bucket_numel;     /* number of elements at which a bucket ends (params/param.h); 0: no limit */
};

/* Elements [begin, end) of the flat buffer. */
struct meg_elem_range {
    int64_t begin, end;
};

/*
 * Divide r into nshards equal shards, and return the one of `rank`, which counts from 0.  nshards must divide the
 * length of r.
 */
static inline struct meg_elem_range meg_zero_shard_of(struct meg_elem_range r, int64_t nshards, int64_t rank)
{
    const int64_t n = (r.end - r.begin) / nshards;
    const struct meg_elem_range shard = { r.begin + rank * n, r.begin + (rank + 1) * n };

    return shard;
}
