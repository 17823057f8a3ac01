/* gemma2.c - Gemma 2: Gemma with norms of inputs and outputs, soft caps, and a window in every other layer. */
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
    CKPT_HF_WEIGHT(CKPT_HF_LAYER "post_self_attn_layernorm", FOREIGN "post_attention_layernorm", CKPT_SAME),
    CKPT_HF_WEIGHT(CKPT_HF_LAYER "pre_mlp_layernorm", FOREIGN "pre_feedforward_layernorm", CKPT_SAME),
    CKPT_HF_GATED(FOREIGN "mlp.gate_proj", FOREIGN "mlp.up_proj", FOREIGN "mlp.down_proj"),
    CKPT_HF_WEIGHT(CKPT_HF_LAYER "post_mlp_layernorm", FOREIGN "post_feedforward_layernorm", CKPT_SAME),
    CKPT_HF_WEIGHT("decoder.final_layernorm", "model.norm", CKPT_SAME),
    { "output_layer.weight", "lm_head.weight", CKPT_SAME },
    { 0 }
};
/* clang-format on */
static const char *const ignored[] = { FOREIGN "self_attn.rotary_emb.inv_freq", NULL };
const struct ckpt_format ckpt_hf_gemma2_format = {
    .name = "hf", .rename = names, .prefix = "model.", .ignored = ignored
};

/* clang-format off */
static const struct ckpt_hf_row rows[] = {
    CKPT_HF_SIZES,
    CKPT_HF_HEADS("4", "256"),
    CKPT_HF_TRAINING,
    CKPT_HF_TIED("no"),
    CKPT_HF_ROPE("10000"),
    { "rms_norm_eps", "norm-epsilon", "1e-06", NULL },
    { "hidden_activation|hidden_act", "=", "\"gelu_pytorch_tanh\"", NULL },
    { "attention_bias", "=", "false", NULL },
    { "query_pre_attn_scalar", NULL, "256", &ckpt_hf_inverse_root },
    { "attn_logit_softcapping", "attn-logit-softcapping", "50|unset", NULL },
    { "final_logit_softcapping", "final-logit-softcapping", "30|unset", NULL },
    { "sliding_window", "=", "4096", &ckpt_hf_window },
    { "layer_types", NULL, "2", &ckpt_hf_layer_types },
    { 0 }
};
/* clang-format on */

const struct ckpt_hf_family ckpt_hf_gemma2 = { .model_type = "gemma2",
                                               .class_name = "Gemma2ForCausalLM",
                                               .options = CKPT_HF_GEMMA_OPTIONS "norm-placement = sandwich\n",
                                               .rows = rows,
                                               .format = &ckpt_hf_gemma2_format };
