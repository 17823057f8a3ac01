/*
 * gemma3.c - the text model of Gemma 3: Gemma 2 with norms of queries and keys, and another rotary base in layers with
 * a window.
 */
#include "ckpt/hf_types/rows.h"

/* clang-format off */
static const struct ckpt_hf_row rows[] = {
    CKPT_HF_SIZES,
    CKPT_HF_HEADS("4", "256"),
    CKPT_HF_TRAINING,
    CKPT_HF_TIED("no"),
    { "rope_local_base_freq", "rotary-base-window", "10000", NULL },
    CKPT_HF_ROPE("1000000"),
    { "rms_norm_eps", "norm-epsilon", "1e-06", NULL },
    { "hidden_activation|hidden_act", "=", "\"gelu_pytorch_tanh\"", NULL },
    { "attention_bias", "=", "false", NULL },
    { "query_pre_attn_scalar", NULL, "256", &ckpt_hf_inverse_root },
    { "attn_logit_softcapping", NULL, "null", NULL },
    { "final_logit_softcapping", NULL, "null", NULL },
    { "sliding_window", "=", "4096", &ckpt_hf_window },
    { "sliding_window_pattern|_sliding_window_pattern", NULL, "6", &ckpt_hf_window_pattern },
    { "layer_types", NULL, NULL, &ckpt_hf_layer_types },
    { 0 }
};
/* clang-format on */

const struct ckpt_hf_family ckpt_hf_gemma3_text = { .model_type = "gemma3_text",
                                                    .class_name = "Gemma3ForCausalLM",
                                                    .options = CKPT_HF_GEMMA_OPTIONS
                                                    "norm-placement = sandwich\nqk-layernorm = yes\n",
                                                    .rows = rows,
                                                    .format = &ckpt_hf_gemma2_format };
