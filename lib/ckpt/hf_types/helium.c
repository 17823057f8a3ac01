/* helium.c - Helium: Llama with rotation of adjacent channels. */
#include "ckpt/hf_types/rows.h"

/* clang-format off */
static const struct ckpt_hf_row rows[] = {
    CKPT_HF_SIZES,
    CKPT_HF_HEADS("unset", "128"),
    CKPT_HF_TRAINING,
    CKPT_HF_TIED("yes"),
    CKPT_HF_ROPE("100000"),
    { "rms_norm_eps", "norm-epsilon", "1e-08", NULL },
    { "hidden_act", "=", "\"silu\"", NULL },
    { "attention_bias", "=", "false", NULL },
    { "mlp_bias", "=", "false", NULL },
    { 0 }
};
/* clang-format on */

const struct ckpt_hf_family ckpt_hf_helium = { .model_type = "helium",
                                               .class_name = "HeliumForCausalLM",
                                               .options = CKPT_HF_LLAMA_OPTIONS "rotary-interleaved = yes\n",
                                               .rows = rows,
                                               .format = &ckpt_hf_llama_format };
