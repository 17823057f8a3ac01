/* qwen2.c - Qwen2: Llama with biases of queries, keys and values. */
#include "ckpt/hf_types/rows.h"

/* clang-format off */
static const struct ckpt_hf_row rows[] = {
    CKPT_HF_SIZES,
    CKPT_HF_HEADS("32", "unset"),
    CKPT_HF_TRAINING,
    CKPT_HF_TIED("yes"),
    CKPT_HF_ROPE("10000"),
    { "rms_norm_eps", "norm-epsilon", "1e-06", NULL },
    { "hidden_act", "=", "\"silu\"", NULL },
    CKPT_HF_QWEN_WINDOW,
    { 0 }
};
/* clang-format on */

const struct ckpt_hf_family ckpt_hf_qwen2 = { .model_type = "qwen2",
                                              .class_name = "Qwen2ForCausalLM",
                                              .options = CKPT_HF_LLAMA_OPTIONS "add-qkv-bias = yes\n",
                                              .rows = rows,
                                              .format = &ckpt_hf_llama_format };
