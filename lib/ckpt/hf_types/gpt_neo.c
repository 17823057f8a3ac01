/* gpt_neo.c - GPT-Neo: GPT-2 with linear layers [out, in], scores that are not scaled, and windows in some layers. */
#include "ckpt/hf_types/rows.h"

#define FOREIGN "transformer.h.#."
/* clang-format off */
static const struct ckpt_rename names[] = {
    { "embedding.word_embeddings.weight", "transformer.wte.weight", CKPT_SAME },
    { "embedding.position_embeddings.weight", "transformer.wpe.weight", CKPT_SAME },
    CKPT_HF_BOTH(CKPT_HF_LAYER "input_layernorm", FOREIGN "ln_1", CKPT_SAME),
    CKPT_HF_QKV(FOREIGN "attn.attention.q_proj", FOREIGN "attn.attention.k_proj", FOREIGN "attn.attention.v_proj"),
    CKPT_HF_BOTH(CKPT_HF_LAYER "self_attention.linear_proj", FOREIGN "attn.attention.out_proj", CKPT_SAME),
    CKPT_HF_BOTH(CKPT_HF_LAYER "pre_mlp_layernorm", FOREIGN "ln_2", CKPT_SAME),
    CKPT_HF_BOTH(CKPT_HF_LAYER "mlp.linear_fc1", FOREIGN "mlp.c_fc", CKPT_SAME),
    CKPT_HF_BOTH(CKPT_HF_LAYER "mlp.linear_fc2", FOREIGN "mlp.c_proj", CKPT_SAME),
    CKPT_HF_BOTH("decoder.final_layernorm", "transformer.ln_f", CKPT_SAME),
    { "output_layer.weight", "lm_head.weight", CKPT_SAME },
    { 0 }
};
static const char *const ignored[] = { FOREIGN "attn.attention.bias", FOREIGN "attn.attention.masked_bias", NULL };
static const struct ckpt_format format = {
    .name = "hf", .rename = names, .prefix = "transformer.", .ignored = ignored
};

static const struct ckpt_hf_row rows[] = {
    { "num_layers", "num-layers", NULL, NULL },
    { "hidden_size", "hidden-size", NULL, NULL },
    { "num_heads", "num-attention-heads", NULL, NULL },
    { "intermediate_size", "ffn-hidden-size", "", NULL },
    { "max_position_embeddings", "max-position-embeddings", NULL, NULL },
    { "layer_norm_epsilon", "norm-epsilon", "1e-05", NULL },
    { "initializer_range", "init-method-std", "", NULL },
    { "attention_dropout", "attention-dropout", "0", NULL },
    { "resid_dropout", "hidden-dropout", "0", NULL },
    CKPT_HF_TIED("no"),
    { "activation_function", NULL, "gelu_new", &ckpt_hf_activation },
    { "window_size", NULL, "256", &ckpt_hf_window },
    { "attention_types", NULL, NULL, &ckpt_hf_attention_types },
    { "attention_layers", NULL, NULL, &ckpt_hf_layer_types },
    { 0 }
};
/* clang-format on */

const struct ckpt_hf_family ckpt_hf_gpt_neo = {
    .model_type = "gpt_neo",
    .class_name = "GPTNeoForCausalLM",
    .options = "disable-bias-linear = yes\nadd-proj-bias = yes\nadd-mlp-bias = yes\nsoftmax-scale = 1\n",
    .rows = rows,
    .format = &format
};
