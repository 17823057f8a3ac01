/* smollm3.c - SmolLM3: Llama without rotary positions in every fourth layer. */
#include "ckpt/hf_types/rows.h"

/* clang-format off */
static const struct ckpt_hf_row rows[] = {
    CKPT_HF_SIZES,
    CKPT_HF_HEADS("4", "unset"),
    CKPT_HF_TRAINING,
    CKPT_HF_TIED("no"),
    CKPT_HF_ROPE("2000000"),
    { "rms_norm_eps", "norm-epsilon", "1e-06", NULL },
    { "hidden_act", "=", "\"silu\"", NULL },
    { "attention_bias", "=", "false", NULL },
    { "mlp_bias", "=", "false", NULL },
    { "sliding_window", "=", "0", &ckpt_hf_window },
    { "use_sliding_window", NULL, NULL, &ckpt_hf_use_window },
    { "no_rope_layer_interval", NULL, NULL, NULL },
    { "no_rope_layers", "no-rope-freq", "4", &ckpt_hf_rotates },
    { "layer_types", NULL, NULL, &ckpt_hf_layer_types },
    { 0 }
};
/* clang-format on */

const struct ckpt_hf_family ckpt_hf_smollm3 = { .model_type = "smollm3",
                                                .class_name = "SmolLM3ForCausalLM",
                                                .options = CKPT_HF_LLAMA_OPTIONS,
                                                .rows = rows,
                                                .format = &ckpt_hf_llama_format };
