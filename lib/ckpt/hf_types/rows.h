/* rows.h - rows that the tables of several model types have (struct ckpt_hf_row). */
#pragma once
#include "ckpt/hf/internal.h"

/* clang-format off */

/* ---- members of config.json ---- */

/* The sizes, as Llama and most model types call them. */
#define CKPT_HF_SIZES \
    { "num_hidden_layers", "num-layers", NULL, NULL }, \
    { "hidden_size", "hidden-size", NULL, NULL }, \
    { "intermediate_size", "ffn-hidden-size", NULL, NULL }, \
    { "num_attention_heads", "num-attention-heads", NULL, NULL }, \
    { "max_position_embeddings", "max-position-embeddings", NULL, NULL }
/* The sizes and dropouts of GPT-2 and its successors. */
#define CKPT_HF_GPT2_SIZES \
    { "n_layer", "num-layers", NULL, NULL }, \
    { "n_embd", "hidden-size", NULL, NULL }, \
    { "n_head", "num-attention-heads", NULL, NULL }, \
    { "n_inner", "ffn-hidden-size", "", NULL }, \
    { "n_ctx", "max-position-embeddings", "", NULL }, /* an older name of n_positions, which is used */ \
    { "n_positions", "max-position-embeddings", NULL, NULL }, \
    { "initializer_range", "init-method-std", "", NULL }, \
    { "attn_pdrop", "attention-dropout", "0.1", NULL }, \
    { "resid_pdrop", "hidden-dropout", "0.1", NULL }, \
    { "embd_pdrop", "hidden-dropout", NULL, &ckpt_hf_embd_pdrop }
/* Heads of keys and values, and channels of a head, with the values if they are missing; "unset": derived. */
#define CKPT_HF_HEADS(kv_heads, head_dim) \
    { "num_key_value_heads", "num-query-groups", kv_heads "|unset", NULL }, \
    { "head_dim", "kv-channels", head_dim "|unset", NULL }
/* Members of all models that only affect training. */
#define CKPT_HF_TRAINING \
    { "initializer_range", "init-method-std", "", NULL }, \
    { "attention_dropout", "attention-dropout", "0", NULL }
/* `untied` is the value of --untie-embeddings-and-output-weights if tie_word_embeddings is missing. */
#define CKPT_HF_TIED(untied) { "tie_word_embeddings", "!untie-embeddings-and-output-weights", untied, NULL }
/* Biases of attention, and of the MLP. */
#define CKPT_HF_BIASES \
    { "attention_bias", "add-qkv-bias", "no", NULL }, \
    { "attention_bias", "add-proj-bias", "no", NULL }, \
    { "mlp_bias", "add-mlp-bias", "no", NULL }
/* The rotated fraction of a head if it is missing.  This row precedes CKPT_HF_ROPE, whose objects may also have it. */
#define CKPT_HF_PARTIAL(percent) { "partial_rotary_factor", "rotary-percent", percent, NULL }
/* Rotary positions, with the base if it is missing. */
#define CKPT_HF_ROPE(base) \
    { "rope_theta", "rotary-base", base, NULL }, \
    { "rope_scaling", NULL, NULL, &ckpt_hf_rope }, \
    { "rope_parameters", NULL, NULL, &ckpt_hf_rope_of_v5 }

/* Qwen's windows. */
#define CKPT_HF_QWEN_WINDOW \
    { "sliding_window", NULL, "4096", &ckpt_hf_window }, \
    { "use_sliding_window", NULL, NULL, &ckpt_hf_use_window }, \
    { "max_window_layers", NULL, "28", &ckpt_hf_first_window }, \
    { "layer_types", NULL, NULL, &ckpt_hf_layer_types }
/* Options of Llama and the types with its layers. */
#define CKPT_HF_LLAMA_OPTIONS \
    "position-embedding-type = rope\nnormalization = RMSNorm\nswiglu = yes\ndisable-bias-linear = yes\n" \
    "hidden-dropout = 0\n"

/* Options of Gemma. */
#define CKPT_HF_GEMMA_OPTIONS \
    "position-embedding-type = rope\nnormalization = RMSNorm\napply-layernorm-1p = yes\n" \
    "glu-activation = geglu\nopenai-gelu = yes\ndisable-bias-linear = yes\nembedding-multiplier = sqrt\n" \
    "hidden-dropout = 0\n"

/* ---- tensor names; N: the native prefix of a layer, F: the foreign one ---- */

#define CKPT_HF_LAYER "decoder.layers.#."
#define CKPT_HF_WEIGHT(native, foreign, remap) { native ".weight", foreign ".weight", remap }
#define CKPT_HF_BOTH(native, foreign, remap) \
    { native ".weight", foreign ".weight", remap }, { native ".bias", foreign ".bias", remap }
/* Queries, keys and values in three tensors with these names. */
#define CKPT_HF_QKV(q, k, v) \
    CKPT_HF_BOTH(CKPT_HF_LAYER "self_attention.linear_qkv", q, CKPT_Q), \
    CKPT_HF_BOTH(CKPT_HF_LAYER "self_attention.linear_qkv", k, CKPT_K), \
    CKPT_HF_BOTH(CKPT_HF_LAYER "self_attention.linear_qkv", v, CKPT_V)
/* A gated MLP with gate and up in two tensors. */
#define CKPT_HF_GATED(gate, up, down) \
    CKPT_HF_BOTH(CKPT_HF_LAYER "mlp.linear_fc1", gate, CKPT_GATE), \
    CKPT_HF_BOTH(CKPT_HF_LAYER "mlp.linear_fc1", up, CKPT_UP), \
    CKPT_HF_BOTH(CKPT_HF_LAYER "mlp.linear_fc2", down, CKPT_SAME)

/* clang-format on */
