/* codegen.c - CodeGen: GPT-J with queries, values and keys of four blocks in one tensor. */
#include "ckpt/hf_types/rows.h"

#define FOREIGN "transformer.h.#."
/* clang-format off */
static const struct ckpt_rename names[] = {
    { "embedding.word_embeddings.weight", "transformer.wte.weight", CKPT_SAME },
    CKPT_HF_BOTH(CKPT_HF_LAYER "input_layernorm", FOREIGN "ln_1", CKPT_SAME),
    CKPT_HF_WEIGHT(CKPT_HF_LAYER "self_attention.linear_qkv", FOREIGN "attn.qkv_proj", CKPT_QVK_BLOCKS),
    CKPT_HF_BOTH(CKPT_HF_LAYER "self_attention.linear_proj", FOREIGN "attn.out_proj", CKPT_SAME),
    CKPT_HF_BOTH(CKPT_HF_LAYER "mlp.linear_fc1", FOREIGN "mlp.fc_in", CKPT_SAME),
    CKPT_HF_BOTH(CKPT_HF_LAYER "mlp.linear_fc2", FOREIGN "mlp.fc_out", CKPT_SAME),
    CKPT_HF_BOTH("decoder.final_layernorm", "transformer.ln_f", CKPT_SAME),
    CKPT_HF_BOTH("output_layer", "lm_head", CKPT_SAME),
    { 0 }
};
/* clang-format on */
static const char *const ignored[] = { FOREIGN "attn.bias", FOREIGN "attn.masked_bias", FOREIGN "attn.causal_mask",
                                       NULL };
static const struct ckpt_format format = {
    .name = "hf", .rename = names, .prefix = "transformer.", .ignored = ignored
};

/* clang-format off */
static const struct ckpt_hf_row rows[] = {
    CKPT_HF_GPT2_SIZES,
    { "layer_norm_epsilon", "norm-epsilon", "1e-05", NULL },
    CKPT_HF_TIED("yes"),
    { "activation_function", NULL, "gelu_new", &ckpt_hf_activation },
    { "rotary_dim", "rotary-percent", "64", &ckpt_hf_rotary_dim },
    { "rotary", NULL, "true", NULL },
    { "scale_attn_weights", NULL, "true", NULL },
    { 0 }
};
/* clang-format on */

const struct ckpt_hf_family ckpt_hf_codegen = {
    .model_type = "codegen",
    .class_name = "CodeGenForCausalLM",
    .options = "position-embedding-type = rope\nrotary-interleaved = yes\nparallel-residual = "
               "shared-norm\ndisable-bias-linear = yes\nadd-mlp-bias = yes\nadd-output-bias = yes\n",
    .rows = rows,
    .format = &format
};
