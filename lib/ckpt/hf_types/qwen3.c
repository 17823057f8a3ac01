/* qwen3.c - Qwen3: Llama with norms of queries and keys. */
#include "ckpt/hf_types/rows.h"

/* clang-format off */
static const struct ckpt_hf_row rows[] = {
    CKPT_HF_SIZES,
    CKPT_HF_HEADS("32", "128"),
    CKPT_HF_TRAINING,
    CKPT_HF_TIED("yes"),
    CKPT_HF_ROPE("10000"),
    { "rms_norm_eps", "norm-epsilon", "1e-06", NULL },
    { "hidden_act", "=", "\"silu\"", NULL },
    { "attention_bias", "=", "false", NULL },
    CKPT_HF_QWEN_WINDOW,
    { 0 }
};
/* clang-format on */

const struct ckpt_hf_family ckpt_hf_qwen3 = { .model_type = "qwen3",
                                              .class_name = "Qwen3ForCausalLM",
                                              .options = CKPT_HF_LLAMA_OPTIONS "qk-layernorm = yes\n",
                                              .rows = rows,
                                              .format = &ckpt_hf_llama_format };
