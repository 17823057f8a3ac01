/* ministral3.c - Ministral 3: Llama with YaRN and a temperature of queries that depends on the position. */
#include "ckpt/hf_types/rows.h"

/* clang-format off */
static const struct ckpt_hf_row rows[] = {
    CKPT_HF_SIZES,
    CKPT_HF_HEADS("8", "128"),
    CKPT_HF_TRAINING,
    CKPT_HF_TIED("yes"),
    { "rope_parameters", NULL, NULL, &ckpt_hf_rope_of_ministral3 },
    { "rms_norm_eps", "norm-epsilon", "1e-05", NULL },
    { "hidden_act", "=", "\"silu\"", NULL },
    { "sliding_window", "=", "null", NULL },
    { 0 }
};
/* clang-format on */

const struct ckpt_hf_family ckpt_hf_ministral3 = { .model_type = "ministral3",
                                                   .class_name = "Ministral3ForCausalLM",
                                                   .options = CKPT_HF_LLAMA_OPTIONS "rotary-base = 1000000\n",
                                                   .rows = rows,
                                                   .format = &ckpt_hf_llama_format };
