/* nemotron.c - Nemotron-4 and Minitron: Llama with LayerNorm, whose weights differ from 1, and squared ReLU. */
#include "ckpt/hf_types/rows.h"

#define FOREIGN "model.layers.#."
/* clang-format off */
static const struct ckpt_rename names[] = {
    { "embedding.word_embeddings.weight", "model.embed_tokens.weight", CKPT_SAME },
    CKPT_HF_BOTH(CKPT_HF_LAYER "input_layernorm", FOREIGN "input_layernorm", CKPT_SAME),
    CKPT_HF_QKV(FOREIGN "self_attn.q_proj", FOREIGN "self_attn.k_proj", FOREIGN "self_attn.v_proj"),
    CKPT_HF_BOTH(CKPT_HF_LAYER "self_attention.linear_proj", FOREIGN "self_attn.o_proj", CKPT_SAME),
    CKPT_HF_BOTH(CKPT_HF_LAYER "pre_mlp_layernorm", FOREIGN "post_attention_layernorm", CKPT_SAME),
    CKPT_HF_BOTH(CKPT_HF_LAYER "mlp.linear_fc1", FOREIGN "mlp.up_proj", CKPT_SAME),
    CKPT_HF_BOTH(CKPT_HF_LAYER "mlp.linear_fc2", FOREIGN "mlp.down_proj", CKPT_SAME),
    CKPT_HF_BOTH("decoder.final_layernorm", "model.norm", CKPT_SAME),
    { "output_layer.weight", "lm_head.weight", CKPT_SAME },
    { 0 }
};
/* clang-format on */
static const char *const ignored[] = { FOREIGN "self_attn.rotary_emb.inv_freq", NULL };
const struct ckpt_format ckpt_hf_nemotron_format = {
    .name = "hf", .rename = names, .prefix = "model.", .ignored = ignored
};

/* clang-format off */
static const struct ckpt_hf_row rows[] = {
    CKPT_HF_SIZES,
    CKPT_HF_HEADS("unset", "unset"),
    { "initializer_range", "init-method-std", "0.0134", NULL },
    { "attention_dropout", "attention-dropout", "0", NULL },
    CKPT_HF_TIED("yes"),
    CKPT_HF_PARTIAL("0.5"),
    CKPT_HF_ROPE("10000"),
    { "norm_eps", "norm-epsilon", "1e-05", NULL },
    { "hidden_act", "=", "\"relu2\"", NULL },
    CKPT_HF_BIASES,
    { 0 }
};
/* clang-format on */

const struct ckpt_hf_family ckpt_hf_nemotron = {
    .model_type = "nemotron",
    .class_name = "NemotronForCausalLM",
    .options = "position-embedding-type = rope\napply-layernorm-1p = yes\nsquared-relu = yes\n"
               "disable-bias-linear = yes\nhidden-dropout = 0\n",
    .rows = rows,
    .format = &ckpt_hf_nemotron_format
};
