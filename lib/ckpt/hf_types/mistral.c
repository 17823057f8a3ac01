/* mistral.c - Mistral: Llama with a window.   */
#include "ckpt/hf_types/rows.h"

/* clang-format off */
static const struct ckpt_hf_row rows[] = {
    CKPT_HF_SIZES,
    CKPT_HF_HEADS("8", "unset"),
    CKPT_HF_TRAINING,
    CKPT_HF_TIED("yes"),
    CKPT_HF_ROPE("10000"),
    { "rms_norm_eps", "norm-epsilon", "1e-06", NULL },
    { "hidden_act", "=", "\"silu\"", NULL },
    { "sliding_window", "=", "4096", &ckpt_hf_window },
    { 0 }
};
/* clang-format on */

const struct ckpt_hf_family ckpt_hf_mistral = { .model_type = "mistral",
                                                .class_name = "MistralForCausalLM",
                                                .options = CKPT_HF_LLAMA_OPTIONS,
                                                .rows = rows,
                                                .format = &ckpt_hf_llama_format };
