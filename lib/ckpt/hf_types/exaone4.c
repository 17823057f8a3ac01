/* exaone4.c - EXAONE 4: norms of outputs, and of queries and keys; layers without a window have no rotary positions. */
#include "ckpt/hf_types/rows.h"

/* clang-format off */
static const struct ckpt_hf_row rows[] = {
    CKPT_HF_SIZES,
    CKPT_HF_HEADS("32", "unset"),
    CKPT_HF_TRAINING,
    CKPT_HF_TIED("yes"),
    CKPT_HF_ROPE("10000"),
    { "rms_norm_eps", "norm-epsilon", "1e-05", NULL },
    { "hidden_act", "=", "\"silu\"", NULL },
    { "sliding_window", "=", "4096", &ckpt_hf_window },
    { "sliding_window_pattern", "=no-rope-freq", "4", &ckpt_hf_window_pattern },
    { "layer_types", "=no-rope-freq", NULL, &ckpt_hf_layer_types },
    { 0 }
};
/* clang-format on */

const struct ckpt_hf_family ckpt_hf_exaone4 = { .model_type = "exaone4",
                                                .class_name = "Exaone4ForCausalLM",
                                                .options = CKPT_HF_LLAMA_OPTIONS
                                                "norm-placement = output\nqk-layernorm = yes\n",
                                                .rows = rows,
                                                .format = &ckpt_hf_gemma2_format };
