/* ministral.c - Ministral: Mistral with a window in some layers. */
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
    { "layer_types", NULL, NULL, &ckpt_hf_layer_types },
    { 0 }
};
/* clang-format on */

const struct ckpt_hf_family ckpt_hf_ministral = { .model_type = "ministral",
                                                  .class_name = "MinistralForCausalLM",
                                                  .options = CKPT_HF_LLAMA_OPTIONS,
                                                  .rows = rows,
                                                  .format = &ckpt_hf_llama_format };
