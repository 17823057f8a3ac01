/* ernie4_5.c - ERNIE 4.5: Llama with rotation of adjacent channels. */
#include "ckpt/hf_types/rows.h"

/* clang-format off */
static const struct ckpt_hf_row rows[] = {
    CKPT_HF_SIZES,
    CKPT_HF_HEADS("2", "128"),
    CKPT_HF_TRAINING,
    CKPT_HF_TIED("no"),
    CKPT_HF_ROPE("500000"),
    { "rms_norm_eps", "norm-epsilon", "1e-05", NULL },
    { "hidden_act", "=", "\"silu\"", NULL },
    { "use_bias", "disable-bias-linear", "yes", NULL },
    { 0 }
};
/* clang-format on */

const struct ckpt_hf_family ckpt_hf_ernie4_5 = { .model_type = "ernie4_5",
                                                 .class_name = "Ernie4_5ForCausalLM",
                                                 .options = CKPT_HF_LLAMA_OPTIONS "rotary-interleaved = yes\n",
                                                 .rows = rows,
                                                 .format = &ckpt_hf_llama_format };
