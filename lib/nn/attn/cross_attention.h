/*
 * cross_attention.h - cross-attention of a decoder (Vaswani et al. 2017): the queries are computed from the decoder's
 * hidden states, the keys and values from the output of the encoder (struct meg_memory).  A row of keys and values has,
 * for each head, d columns of the key and d of the value.
 */
#ifndef MEG_NN_ATTN_CROSS_ATTENTION_H
#define MEG_NN_ATTN_CROSS_ATTENTION_H
#include "nn/block.h"

MEG_BEGIN_DECLS

/* Configuration of the block type meg_cross_attn_block, with the sizes of the complete model. */
struct meg_cross_attn_conf {
    int64_t h;           /* width of the residual stream, and of the encoder's output */
    int64_t a, d;        /* heads, head size */
    double std, std_out; /* standard deviation of the initial weights of q and kv, and of proj */
    bool has_bias;
    double scale;                            /* of the scores; 0: 1 / sqrt(d) */
    double dropout;                          /* dropout probability of the attention weights */
    const struct meg_linear_variant *linear; /* of q, kv and proj; NULL: dense */
};

extern const struct meg_block_type meg_cross_attn_block;

MEG_END_DECLS
#endif
