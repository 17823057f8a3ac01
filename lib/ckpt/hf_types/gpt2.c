/*
 * gpt2.c - Hugging Face's GPT-2: tensor names, layouts and config.json of GPT2LMHeadModel.
 *
 * GPT-2's linear layers are Conv1D with weights [in, out]; c_attn has all queries, then all keys, then all values.
 */
#include "ckpt/hf_types/rows.h"

#define NATIVE "decoder.layers.#."
#define FOREIGN "transformer.h.#."
/* clang-format off */
static const struct ckpt_rename names[] = {
    { "embedding.word_embeddings.weight", "transformer.wte.weight", CKPT_SAME },
    { "embedding.position_embeddings.weight", "transformer.wpe.weight", CKPT_SAME },
    { NATIVE "input_layernorm.weight", FOREIGN "ln_1.weight", CKPT_SAME },
    { NATIVE "input_layernorm.bias", FOREIGN "ln_1.bias", CKPT_SAME },
    { NATIVE "self_attention.linear_qkv.weight", FOREIGN "attn.c_attn.weight", CKPT_QKV_TRANSPOSED },
    { NATIVE "self_attention.linear_qkv.bias", FOREIGN "attn.c_attn.bias", CKPT_QKV },
    { NATIVE "self_attention.linear_proj.weight", FOREIGN "attn.c_proj.weight", CKPT_TRANSPOSED },
    { NATIVE "self_attention.linear_proj.bias", FOREIGN "attn.c_proj.bias", CKPT_SAME },
    { NATIVE "pre_mlp_layernorm.weight", FOREIGN "ln_2.weight", CKPT_SAME },
    { NATIVE "pre_mlp_layernorm.bias", FOREIGN "ln_2.bias", CKPT_SAME },
    { NATIVE "mlp.linear_fc1.weight", FOREIGN "mlp.c_fc.weight", CKPT_TRANSPOSED },
    { NATIVE "mlp.linear_fc1.bias", FOREIGN "mlp.c_fc.bias", CKPT_SAME },
    { NATIVE "mlp.linear_fc2.weight", FOREIGN "mlp.c_proj.weight", CKPT_TRANSPOSED },
    { NATIVE "mlp.linear_fc2.bias", FOREIGN "mlp.c_proj.bias", CKPT_SAME },
    { "decoder.final_layernorm.weight", "transformer.ln_f.weight", CKPT_SAME },
    { "decoder.final_layernorm.bias", "transformer.ln_f.bias", CKPT_SAME },
    { "output_layer.weight", "lm_head.weight", CKPT_SAME },
    { 0 }
};
/* clang-format on */
/* Buffers of the causal mask, which older versions of transformers store with the weights. */
static const char *const ignored[] = { FOREIGN "attn.bias", FOREIGN "attn.masked_bias", NULL };
static const struct ckpt_format format = {
    .name = "hf", .rename = names, .prefix = "transformer.", .ignored = ignored
};

/* clang-format off */
static const struct ckpt_hf_row rows[] = {
    CKPT_HF_GPT2_SIZES,
    { "layer_norm_epsilon", "norm-epsilon", "1e-05", NULL },
    CKPT_HF_TIED("no"),
    { "activation_function", NULL, "gelu_new", &ckpt_hf_gelu },
    { "scale_attn_weights", NULL, "true", NULL },
    { "reorder_and_upcast_attn", NULL, NULL, NULL },
    { "scale_attn_by_inverse_layer_idx", NULL, "false", NULL },
    { "add_cross_attention", NULL, "false", NULL },
    { 0 }
};
/* clang-format on */

const struct ckpt_hf_family ckpt_hf_gpt2 = {
    .model_type = "gpt2", .class_name = "GPT2LMHeadModel", .options = "", .rows = rows, .format = &format
};
