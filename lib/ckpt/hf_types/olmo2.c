/* olmo2.c - OLMo 2: Llama with norms of the outputs of attention and MLP, and of the queries and keys of a token. */
#include "ckpt/hf_types/rows.h"

#define FOREIGN "model.layers.#."
/* clang-format off */
static const struct ckpt_rename names[] = {
    { "embedding.word_embeddings.weight", "model.embed_tokens.weight", CKPT_SAME },
    CKPT_HF_QKV(FOREIGN "self_attn.q_proj", FOREIGN "self_attn.k_proj", FOREIGN "self_attn.v_proj"),
    CKPT_HF_WEIGHT(CKPT_HF_LAYER "self_attention.q_layernorm", FOREIGN "self_attn.q_norm", CKPT_SAME),
    CKPT_HF_WEIGHT(CKPT_HF_LAYER "self_attention.k_layernorm", FOREIGN "self_attn.k_norm", CKPT_SAME),
    CKPT_HF_BOTH(CKPT_HF_LAYER "self_attention.linear_proj", FOREIGN "self_attn.o_proj", CKPT_SAME),
    CKPT_HF_WEIGHT(CKPT_HF_LAYER "post_self_attn_layernorm", FOREIGN "post_attention_layernorm", CKPT_SAME),
    CKPT_HF_GATED(FOREIGN "mlp.gate_proj", FOREIGN "mlp.up_proj", FOREIGN "mlp.down_proj"),
    CKPT_HF_WEIGHT(CKPT_HF_LAYER "post_mlp_layernorm", FOREIGN "post_feedforward_layernorm", CKPT_SAME),
    CKPT_HF_WEIGHT("decoder.final_layernorm", "model.norm", CKPT_SAME),
    { "output_layer.weight", "lm_head.weight", CKPT_SAME },
    { 0 }
};
/* clang-format on */
static const char *const ignored[] = { FOREIGN "self_attn.rotary_emb.inv_freq", NULL };
const struct ckpt_format ckpt_hf_olmo2_format = {
    .name = "hf", .rename = names, .prefix = "model.", .ignored = ignored
};

/* clang-format off */
static const struct ckpt_hf_row rows[] = {
    CKPT_HF_SIZES,
    CKPT_HF_HEADS("unset", "unset"),
    CKPT_HF_TRAINING,
    CKPT_HF_TIED("yes"),
    CKPT_HF_ROPE("10000"),
    { "rms_norm_eps", "norm-epsilon", "1e-05", NULL },
    { "hidden_act", "=", "\"silu\"", NULL },
    { "attention_bias", "=", "false", NULL },
    { 0 }
};
/* clang-format on */

const struct ckpt_hf_family ckpt_hf_olmo2 = { .model_type = "olmo2",
                                              .class_name = "Olmo2ForCausalLM",
                                              .options = CKPT_HF_LLAMA_OPTIONS
                                              "norm-placement = output\nqk-layernorm = yes\nqk-norm-scope = width\n",
                                              .rows = rows,
                                              .format = &ckpt_hf_olmo2_format };
