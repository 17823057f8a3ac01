/*
 * zero.h - how the data- and context-parallel ranks shard a model: ZeRO (Rajbhandari et al. 2020), FSDP.
 *
 * Each rank keeps its parameters in one flat buffer, split into buckets (model/param.h).  nshards ranks divide every
 * bucket into equal shards, in rank order and regardless of parameter boundaries.  With
 * --num-distributed-optimizer-instances N there are N such groups of consecutive ranks, and the groups are replicas of
 * each other.  The options and the collectives are in lib/optim/zero.
 */
#ifndef MEG_PARALLEL_ZERO_H
#define MEG_PARALLEL_ZERO_H
#include <stdint.h>
#include "base/decls.h"

MEG_BEGIN_DECLS

struct meg_zero_layout {
    int stage;            /* 0: nothing is sharded; 1: optimizer state; 2: also gradients; 3: also parameters */
    int64_t nshards;      /* number of shards of each bucket; 0 in stage 0 */
    int64_t bucket_numel; /* a bucket ends once it has this many elements; 0: a single bucket holds all */
};

/* Elements [begin, end) of the flat buffer. */
struct meg_elem_range {
    int64_t begin, end;
};

/*
 * Return the shard of r that belongs to `rank` if r is divided into nshards equal shards.  nshards must divide the
 * length of r.
 */
static inline struct meg_elem_range meg_zero_shard_of(struct meg_elem_range r, int64_t nshards, int64_t rank)
{
    const int64_t n = (r.end - r.begin) / nshards;
    const struct meg_elem_range shard = { r.begin + rank * n, r.begin + (rank + 1) * n };

    return shard;
}

MEG_END_DECLS
#endif
