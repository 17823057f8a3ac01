/* olmo.c - OLMo: Llama with a LayerNorm that has neither weight nor bias. */
#include "ckpt/hf_types/rows.h"

/* clang-format off */
static const struct ckpt_hf_row rows[] = {
    CKPT_HF_SIZES,
    CKPT_HF_HEADS("unset", "unset"),
    CKPT_HF_TRAINING,
    CKPT_HF_TIED("yes"),
    CKPT_HF_ROPE("10000"),
    { "hidden_act", "=", "\"silu\"", NULL },
    { "attention_bias", "=", "false", NULL },
    { "clip_qkv", NULL, "null", NULL },
    { 0 }
};
/* clang-format on */

const struct ckpt_hf_family ckpt_hf_olmo = {
    .model_type = "olmo",
    .class_name = "OlmoForCausalLM",
    .options = "position-embedding-type = rope\nnorm-no-bias = yes\nnorm-no-weight = yes\nswiglu = yes\n"
               "disable-bias-linear = yes\nhidden-dropout = 0\n",
    .rows = rows,
    .format = &ckpt_hf_llama_format
};
