/*
 * low_rank.h - low-rank adaptation (LoRA, Hu et al. 2021), a variant of linear layers: y = x w^T + scale (x a^T) b^T.
 *
 * w and the bias are frozen.  a [r, in] and b [out, r] are trained; b is initially 0.  Their names are those of
 * Megatron: NAME.adapter.linear_in.weight and NAME.adapter.linear_out.weight.
 *
 * Tensor parallelism shards the factor that has the sharded dimension of w, and replicates the other one.  The
 * all-reduce of a row-parallel layer's output, or of the gradient of a column-parallel layer's input, also sums the
 * products with the factors.  The gradient of the replicated factor is summed over the ranks
 * (optim/zero/tp_grads.h).
 */
#pragma once
#include "nn/linear.h"

struct meg_low_rank {
    struct meg_linear_variant variant; /* its `kept` is the rank r */
    float scale;                       /* alpha / r */
};

/* Return the configuration of adapters of rank r. */
struct meg_low_rank meg_low_rank(int64_t r, double alpha);
