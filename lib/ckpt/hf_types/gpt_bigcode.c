/*
 * gpt_bigcode.c - GPT-BigCode, such as StarCoder and SantaCoder: GPT-2 with one head of keys and values, and linear
 * layers [out, in].
 */
#include "ckpt/hf_types/rows.h"

#define FOREIGN "transformer.h.#."
/* clang-format off */
static const struct ckpt_rename names[] = {
    { "embedding.word_embeddings.weight", "transformer.wte.weight", CKPT_SAME },
    { "embedding.position_embeddings.weight", "transformer.wpe.weight", CKPT_SAME },
    CKPT_HF_BOTH(CKPT_HF_LAYER "input_layernorm", FOREIGN "ln_1", CKPT_SAME),
    CKPT_HF_BOTH(CKPT_HF_LAYER "self_attention.linear_qkv", FOREIGN "attn.c_attn", CKPT_SAME),
    CKPT_HF_BOTH(CKPT_HF_LAYER "self_attention.linear_proj", FOREIGN "attn.c_proj", CKPT_SAME),
    CKPT_HF_BOTH(CKPT_HF_LAYER "pre_mlp_layernorm", FOREIGN "ln_2", CKPT_SAME),
    CKPT_HF_BOTH(CKPT_HF_LAYER "mlp.linear_fc1", FOREIGN "mlp.c_fc", CKPT_SAME),
    CKPT_HF_BOTH(CKPT_HF_LAYER "mlp.linear_fc2", FOREIGN "mlp.c_proj", CKPT_SAME),
    CKPT_HF_BOTH("decoder.final_layernorm", "transformer.ln_f", CKPT_SAME),
    { "output_layer.weight", "lm_head.weight", CKPT_SAME },
    { 0 }
};
/* clang-format on */
static const char *const ignored[] = { FOREIGN "attn.bias", FOREIGN "attn.masked_bias", NULL };
static const struct ckpt_format format = {
    .name = "hf", .rename = names, .prefix = "transformer.", .ignored = ignored
};

static const struct ckpt_hf_choice queries[] = { { "true", "num-query-groups = 1\n" }, { "false", "" }, { 0 } };
static const struct ckpt_hf_convert multi_query = { .choices = queries };
/* clang-format off */
static const struct ckpt_hf_row rows[] = {
    CKPT_HF_GPT2_SIZES,
    { "multi_query", NULL, "true", &multi_query },
    { "num_key_value_heads", NULL, NULL, NULL },
    { "layer_norm_epsilon", "norm-epsilon", "1e-05", NULL },
    CKPT_HF_TIED("no"),
    { "activation_function", NULL, "gelu_pytorch_tanh", &ckpt_hf_gelu },
    { "scale_attn_weights", "=", "true", NULL },
    { "attention_softmax_in_fp32", NULL, NULL, NULL },
    { "scale_attention_softmax_in_fp32", NULL, NULL, NULL },
    { "inference_runner", NULL, "0", NULL },
    { "validate_runner_input", NULL, NULL, NULL },
    { "pre_allocate_kv_cache", NULL, NULL, NULL },
    { "max_sequence_length", NULL, NULL, NULL },
    { "max_batch_size", NULL, NULL, NULL },
    { 0 }
};
/* clang-format on */

const struct ckpt_hf_family ckpt_hf_gpt_bigcode = {
    .model_type = "gpt_bigcode", .class_name = "GPTBigCodeForCausalLM", .options = "", .rows = rows, .format = &format
};
