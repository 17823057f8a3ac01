/*
 * cross_attention.h - cross-attention of a decoder (Vaswani et al. 2017): the queries are computed from the decoder's
 * hidden states, the keys and values from the output of the encoder (struct meg_memory).  A row of keys and values has,
 * for each head, d columns of the key and d of the value.
 */
#pragma once
#include "nn/attn/self_attention.h"

/*
 * The configuration is a struct meg_attn_conf.  All linear layers have biases if has_proj_bias is set; the number of
 * groups equals the number of heads.
 */
extern const struct meg_block_type meg_cross_attn_block;
