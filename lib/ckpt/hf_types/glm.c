/*
 * glm.c - GLM: Llama with gate and up in one tensor, and rotation of half of the channels, in adjacent pairs.  GLM-4
 * also has norms of the outputs of attention and MLP.
 */
#include "ckpt/hf_types/rows.h"

#define FOREIGN "model.layers.#."
/* clang-format off */
static const struct ckpt_rename names[] = {
    { "embedding.word_embeddings.weight", "model.embed_tokens.weight", CKPT_SAME },
    CKPT_HF_WEIGHT(CKPT_HF_LAYER "input_layernorm", FOREIGN "input_layernorm", CKPT_SAME),
    CKPT_HF_QKV(FOREIGN "self_attn.q_proj", FOREIGN "self_attn.k_proj", FOREIGN "self_attn.v_proj"),
    CKPT_HF_BOTH(CKPT_HF_LAYER "self_attention.linear_proj", FOREIGN "self_attn.o_proj", CKPT_SAME),
    CKPT_HF_WEIGHT(CKPT_HF_LAYER "pre_mlp_layernorm", FOREIGN "post_attention_layernorm", CKPT_SAME),
    CKPT_HF_WEIGHT(CKPT_HF_LAYER "post_self_attn_layernorm", FOREIGN "post_self_attn_layernorm", CKPT_SAME),
    CKPT_HF_WEIGHT(CKPT_HF_LAYER "post_mlp_layernorm", FOREIGN "post_mlp_layernorm", CKPT_SAME),
    CKPT_HF_WEIGHT(CKPT_HF_LAYER "mlp.linear_fc1", FOREIGN "mlp.gate_up_proj", CKPT_SAME),
    CKPT_HF_WEIGHT(CKPT_HF_LAYER "mlp.linear_fc2", FOREIGN "mlp.down_proj", CKPT_SAME),
    CKPT_HF_WEIGHT("decoder.final_layernorm", "model.norm", CKPT_SAME),
    { "output_layer.weight", "lm_head.weight", CKPT_SAME },
    { 0 }
};
/* clang-format on */
static const char *const ignored[] = { FOREIGN "self_attn.rotary_emb.inv_freq", NULL };
static const struct ckpt_format format = { .name = "hf", .rename = names, .prefix = "model.", .ignored = ignored };

/* clang-format off */
static const struct ckpt_hf_row rows[] = {
    CKPT_HF_SIZES,
    CKPT_HF_HEADS("2", "128"),
    CKPT_HF_TRAINING,
    CKPT_HF_TIED("yes"),
    CKPT_HF_PARTIAL("0.5"),
    CKPT_HF_ROPE("10000"),
    { "rms_norm_eps", "norm-epsilon", "1.5625e-07", NULL },
    { "hidden_act", "=", "\"silu\"", NULL },
    { "attention_bias", "add-qkv-bias", "yes", NULL },
    { 0 }
};
/* clang-format on */

#define GLM_OPTIONS CKPT_HF_LLAMA_OPTIONS "rotary-interleaved = yes\n"
const struct ckpt_hf_family ckpt_hf_glm = {
    .model_type = "glm", .class_name = "GlmForCausalLM", .options = GLM_OPTIONS, .rows = rows, .format = &format
};
const struct ckpt_hf_family ckpt_hf_glm4 = { .model_type = "glm4",
                                             .class_name = "Glm4ForCausalLM",
                                             .options = GLM_OPTIONS "norm-placement = sandwich\n",
                                             .rows = rows,
                                             .format = &format };
