/* olmo3.c - OLMo 3: OLMo 2 with a window in three of four layers, whose rotary positions are not scaled. */
#include "ckpt/hf_types/rows.h"

/* clang-format off */
static const struct ckpt_hf_row rows[] = {
    CKPT_HF_SIZES,
    CKPT_HF_HEADS("unset", "unset"),
    CKPT_HF_TRAINING,
    CKPT_HF_TIED("yes"),
    { "rope_theta", "rotary-base-window", "500000", NULL },
    CKPT_HF_ROPE("500000"),
    { "rms_norm_eps", "norm-epsilon", "1e-05", NULL },
    { "hidden_act", "=", "\"silu\"", NULL },
    { "attention_bias", "=", "false", NULL },
    { "sliding_window", "=", "4096", &ckpt_hf_window },
    { "layer_types", NULL, "4", &ckpt_hf_layer_types },
    { 0 }
};
/* clang-format on */

const struct ckpt_hf_family ckpt_hf_olmo3 = { .model_type = "olmo3",
                                              .class_name = "Olmo3ForCausalLM",
                                              .options = CKPT_HF_LLAMA_OPTIONS
                                              "norm-placement = output\nqk-layernorm = yes\nqk-norm-scope = width\n",
                                              .rows = rows,
                                              .format = &ckpt_hf_gemma2_format };
