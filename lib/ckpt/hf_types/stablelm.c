/* stablelm.c - StableLM: LayerNorm, a gated MLP without biases, and rotation of a part of the channels. */
#include "ckpt/hf_types/rows.h"

#define FOREIGN "model.layers.#."
/* clang-format off */
static const struct ckpt_rename names[] = {
    { "embedding.word_embeddings.weight", "model.embed_tokens.weight", CKPT_SAME },
    CKPT_HF_BOTH(CKPT_HF_LAYER "input_layernorm", FOREIGN "input_layernorm", CKPT_SAME),
    CKPT_HF_QKV(FOREIGN "self_attn.q_proj", FOREIGN "self_attn.k_proj", FOREIGN "self_attn.v_proj"),
    CKPT_HF_BOTH(CKPT_HF_LAYER "self_attention.linear_proj", FOREIGN "self_attn.o_proj", CKPT_SAME),
    CKPT_HF_BOTH(CKPT_HF_LAYER "pre_mlp_layernorm", FOREIGN "post_attention_layernorm", CKPT_SAME),
    CKPT_HF_GATED(FOREIGN "mlp.gate_proj", FOREIGN "mlp.up_proj", FOREIGN "mlp.down_proj"),
    CKPT_HF_BOTH("decoder.final_layernorm", "model.norm", CKPT_SAME),
    { "output_layer.weight", "lm_head.weight", CKPT_SAME },
    { 0 }
};
/* clang-format on */
static const char *const ignored[] = { FOREIGN "self_attn.rotary_emb.inv_freq", NULL };
static const struct ckpt_format format = { .name = "hf", .rename = names, .prefix = "model.", .ignored = ignored };

/* clang-format off */
static const struct ckpt_hf_row rows[] = {
    CKPT_HF_SIZES,
    CKPT_HF_HEADS("32", "unset"),
    CKPT_HF_TRAINING,
    { "hidden_dropout", "hidden-dropout", "0", NULL },
    CKPT_HF_TIED("yes"),
    CKPT_HF_PARTIAL("0.25"),
    CKPT_HF_ROPE("10000"),
    { "layer_norm_eps", "norm-epsilon", "1e-05", NULL },
    { "hidden_act", "=", "\"silu\"", NULL },
    { "use_qkv_bias", "add-qkv-bias", "no", NULL },
    { "qk_layernorm", "=", "false", NULL },
    { "use_parallel_residual", "=", "false", NULL },
    { 0 }
};
/* clang-format on */

const struct ckpt_hf_family ckpt_hf_stablelm = {
    .model_type = "stablelm",
    .class_name = "StableLmForCausalLM",
    .options = "position-embedding-type = rope\nswiglu = yes\ndisable-bias-linear = yes\nhidden-dropout = 0\n",
    .rows = rows,
    .format = &format
};
