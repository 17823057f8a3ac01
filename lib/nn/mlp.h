/*
 * mlp.h - feed-forward network: y = act(x w1^T + b1) w2^T + b2.  In a gated network, fc1's output is [gate | up], and
 * fc2's input is the output of a gated linear unit, such as SwiGLU's silu(gate) * up.
 */
#pragma once
#include "nn/block.h"

/* Configuration of the block type meg_mlp_block, with the sizes of the complete model. */
struct meg_mlp_conf {
    int64_t f; /* option: inner width, the columns of fc2's input */
    /* set by the description of the model */
    int64_t h; /* width of the residual stream */
    bool is_gated;
    enum meg_act act;    /* of a network that is not gated */
    struct meg_glu glu;  /* the unit of a gated network */
    double std, std_out; /* standard deviation of the initial weights of fc1 and fc2 */
    bool has_bias;
    const struct meg_linear_variant *linear; /* of fc1 and fc2; NULL: dense */
};

extern const struct meg_block_type meg_mlp_block;
