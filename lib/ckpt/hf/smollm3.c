/* smollm3.c - SmolLM3: Llama in which some layers have no rotary positions, and may have a window. */
#include "ckpt/hf/rows.h"

/* clang-format off */
static const struct ckpt_hf_row rows[] = {
    CKPT_HF_SIZES,
    CKPT_HF_HEADS("4", "unset"),
    CKPT_HF_TRAINING,
    CKPT_HF_TIED("no"),
    CKPT_HF_ROPE("2000000"),
    { "rms_norm_eps", "norm-epsilon", "1e-06", NULL },
    { "hidden_act", "=", "\"silu\"", NULL },
    { "attention_bias", "disable-bias-linear", "yes", NULL },
    { "mlp_bias", "disable-bias-linear", NULL, &ckpt_hf_mlp_bias },
    { "no_rope_layers", NULL, NULL, &ckpt_hf_rope_layers },
    { "no_rope_layer_interval", NULL, NULL, NULL },
    { "use_sliding_window", NULL, NULL, &ckpt_hf_smollm3_window },
    { "sliding_window", NULL, NULL, &ckpt_hf_window_size },
    { "layer_types", NULL, NULL, &ckpt_hf_layer_types },
    { 0 }
};
/* clang-format on */

const struct ckpt_hf_family ckpt_hf_smollm3 = { .model_type = "smollm3",
                                                .class_name = "SmolLM3ForCausalLM",
                                                .options = CKPT_HF_LLAMA_OPTIONS,
                                                .rows = rows,
                                                .format = &ckpt_hf_llama_format };
