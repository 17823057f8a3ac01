/* mpt.c - MPT: ALiBi, no biases, and queries, keys and values in one tensor. */
#include "ckpt/hf_types/rows.h"

#define FOREIGN "transformer.blocks.#."
/* clang-format off */
static const struct ckpt_rename names[] = {
    { "embedding.word_embeddings.weight", "transformer.wte.weight", CKPT_SAME },
    CKPT_HF_WEIGHT(CKPT_HF_LAYER "input_layernorm", FOREIGN "norm_1", CKPT_SAME),
    CKPT_HF_WEIGHT(CKPT_HF_LAYER "self_attention.linear_qkv", FOREIGN "attn.Wqkv", CKPT_QKV),
    CKPT_HF_WEIGHT(CKPT_HF_LAYER "self_attention.linear_proj", FOREIGN "attn.out_proj", CKPT_SAME),
    CKPT_HF_WEIGHT(CKPT_HF_LAYER "pre_mlp_layernorm", FOREIGN "norm_2", CKPT_SAME),
    CKPT_HF_WEIGHT(CKPT_HF_LAYER "mlp.linear_fc1", FOREIGN "ffn.up_proj", CKPT_SAME),
    CKPT_HF_WEIGHT(CKPT_HF_LAYER "mlp.linear_fc2", FOREIGN "ffn.down_proj", CKPT_SAME),
    CKPT_HF_WEIGHT("decoder.final_layernorm", "transformer.norm_f", CKPT_SAME),
    { "output_layer.weight", "lm_head.weight", CKPT_SAME },
    { 0 }
};
/* clang-format on */
static const struct ckpt_format format = { .name = "hf", .rename = names, .prefix = "transformer." };

/* clang-format off */
static const struct ckpt_hf_choice implementations[] = { { "torch", "" }, { "flash", "" }, { "triton", "" }, { 0 } };
static const struct ckpt_hf_convert implementation = { .choices = implementations };
static const struct ckpt_hf_row attention[] = {
    { "alibi", "=", "true", NULL },
    { "alibi_bias_max", "=", "8", NULL },
    { "attn_impl", NULL, "torch", &implementation },
    { "attn_pdrop", "attention-dropout", "0", NULL },
    { "attn_type", "=", "\"multihead_attention\"", NULL },
    { "attn_uses_sequence_id", "=", "false", NULL },
    { "clip_qkv", "clip-qkv", "unset", NULL },
    { "prefix_lm", "=", "false", NULL },
    { "qk_ln", "=", "false", NULL },
    { "softmax_scale", "softmax-scale", "unset", NULL },
    { 0 }
};
static const struct ckpt_hf_convert attn_config = { .members = attention };
static const struct ckpt_hf_row rows[] = {
    { "n_layers", "num-layers", NULL, NULL },
    { "d_model", "hidden-size", NULL, NULL },
    { "n_heads", "num-attention-heads", NULL, NULL },
    { "max_seq_len", "max-position-embeddings", "2048", NULL },
    { "initializer_range", "init-method-std", "", NULL },
    { "resid_pdrop", "hidden-dropout", "0", NULL },
    { "layer_norm_epsilon", "norm-epsilon", "1e-05", NULL },
    CKPT_HF_TIED("no"),
    { "attn_config", NULL, NULL, &attn_config },
    { "expansion_ratio", "=", "4", NULL },
    { "no_bias", "=", "true", NULL },
    { "logit_scale", NULL, "null", NULL },
    { "norm_type", NULL, NULL, NULL },
    { "learned_pos_emb", NULL, NULL, NULL },
    { "embedding_fraction", NULL, NULL, NULL },
    { "emb_prenorm", NULL, NULL, NULL },
    { "init_device", NULL, NULL, NULL },
    { "init_config", NULL, NULL, NULL },
    { "verbose", NULL, NULL, NULL },
    { 0 }
};
/* clang-format on */

const struct ckpt_hf_family ckpt_hf_mpt = {
    .model_type = "mpt",
    .class_name = "MptForCausalLM",
    .options =
        "position-embedding-type = alibi\nnorm-no-bias = yes\ndisable-bias-linear = yes\nno-bias-gelu-fusion = yes\n",
    .rows = rows,
    .format = &format
};
