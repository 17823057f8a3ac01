/*
 * llama.c - Llama, whose tensor names and layouts many other types have.
 *
 * Weights of linear layers are [out, in].  RoPE pairs channel i of a head with channel i + head_dim / 2, as meg does
 * without --rotary-interleaved.
 */
#include "ckpt/hf_types/rows.h"

#define FOREIGN "model.layers.#."
/* clang-format off */
static const struct ckpt_rename names[] = {
    { "embedding.word_embeddings.weight", "model.embed_tokens.weight", CKPT_SAME },
    CKPT_HF_WEIGHT(CKPT_HF_LAYER "input_layernorm", FOREIGN "input_layernorm", CKPT_SAME),
    CKPT_HF_QKV(FOREIGN "self_attn.q_proj", FOREIGN "self_attn.k_proj", FOREIGN "self_attn.v_proj"),
    CKPT_HF_WEIGHT(CKPT_HF_LAYER "self_attention.q_layernorm", FOREIGN "self_attn.q_norm", CKPT_SAME),
    CKPT_HF_WEIGHT(CKPT_HF_LAYER "self_attention.k_layernorm", FOREIGN "self_attn.k_norm", CKPT_SAME),
    CKPT_HF_BOTH(CKPT_HF_LAYER "self_attention.linear_proj", FOREIGN "self_attn.o_proj", CKPT_SAME),
    CKPT_HF_WEIGHT(CKPT_HF_LAYER "pre_mlp_layernorm", FOREIGN "post_attention_layernorm", CKPT_SAME),
    CKPT_HF_GATED(FOREIGN "mlp.gate_proj", FOREIGN "mlp.up_proj", FOREIGN "mlp.down_proj"),
    CKPT_HF_WEIGHT("decoder.final_layernorm", "model.norm", CKPT_SAME),
    { "output_layer.weight", "lm_head.weight", CKPT_SAME },
    { 0 }
};
/* clang-format on */
static const char *const ignored[] = { FOREIGN "self_attn.rotary_emb.inv_freq", NULL };
const struct ckpt_format ckpt_hf_llama_format = {
    .name = "hf", .rename = names, .prefix = "model.", .ignored = ignored
};

/* clang-format off */
static const struct ckpt_hf_row rows[] = {
    CKPT_HF_SIZES,
    CKPT_HF_HEADS("unset", "unset"),
    CKPT_HF_TRAINING,
    CKPT_HF_TIED("yes"),
    CKPT_HF_ROPE("10000"),
    { "partial_rotary_factor", NULL, "1", NULL },
    { "rms_norm_eps", "norm-epsilon", "1e-06", NULL },
    { "hidden_act", "=", "\"silu\"", NULL },
    CKPT_HF_BIASES,
    { 0 }
};
/* clang-format on */

const struct ckpt_hf_family ckpt_hf_llama = { .model_type = "llama",
                                              .class_name = "LlamaForCausalLM",
                                              .options = CKPT_HF_LLAMA_OPTIONS,
                                              .rows = rows,
                                              .format = &ckpt_hf_llama_format };
